"""One way to train one model, timed: run as a process of its own by `python -m tests.benchmarks`.

Prints the steps per second of the best of several epochs; the first one, with its tracing, does not count.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import tensorflow as tf


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("how", choices=["tfps", "tf_keras", "local"])
    arguments.add_argument("--model", choices=["small", "chain"], default="small")
    arguments.add_argument("--steps-per-execution", type=int, default=1)
    arguments.add_argument("--workers", type=int, default=3)
    arguments.add_argument("--ps", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--epochs", type=int, default=5)
    options = arguments.parse_args()

    if options.how == "tf_keras":
        import tf_keras as keras

        strategy: Any = _tf_strategy(options.workers, options.ps)
    else:
        import keras

        if options.how == "tfps":
            import tfps

            strategy = tfps.ParameterServerStrategy(tfps.LocalCluster(options.workers, options.ps))
        else:
            strategy = tf.distribute.get_strategy()

    with strategy.scope():
        model, x, y = _model(keras, options.model)
    model.compile(
        "adam" if options.model == "small" else "sgd",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True) if options.model == "small" else "mse",
        metrics=["accuracy"] if options.model == "small" else [],
        steps_per_execution=options.steps_per_execution,
    )

    def dataset(_: Any = None) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(32).repeat().prefetch(2)

    data = keras.utils.experimental.DatasetCreator(dataset) if options.how == "tf_keras" else dataset()
    seconds: list[float] = []

    class Stopwatch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.start = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seconds.append(time.perf_counter() - self.start)

    model.fit(data, epochs=options.epochs, steps_per_epoch=options.steps, verbose=0, callbacks=[Stopwatch()])
    print(f"steps/s {options.steps / min(seconds[1:]):.1f}")


def _tf_strategy(workers: int, ps: int) -> Any:
    from tfps.cluster.local import LocalCluster

    spec = tf.train.ClusterSpec(LocalCluster(workers, ps).cluster_spec)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver)


def _model(keras: Any, name: str) -> tuple[Any, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    layers = keras.layers
    if name == "small":
        x = random.normal(size=(3200, 784)).astype("float32")
        y = random.integers(0, 10, size=3200)
        hidden = [layers.Dense(128, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.3)]
        return keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)]), x, y
    x = random.normal(size=(3200, 32)).astype("float32")
    return keras.Sequential([keras.Input((32,)), *(layers.Dense(32) for _ in range(50))]), x, x


if __name__ == "__main__":
    main()
