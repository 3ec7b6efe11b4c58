"""Counters, metrics and random numbers with several workers: as many as were run, none lost, none twice."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

EXAMPLES, BATCH, EPOCHS = 1200, 10, 2
STEPS = EPOCHS * EXAMPLES // BATCH


class Counter(layers.Layer):
    """Counts the training steps twice, in the two ways that users write it."""

    def build(self, input_shape: Any) -> None:
        self.assigned = self.add_weight(shape=(), initializer="zeros", trainable=False, name="assigned")
        self.added = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False, name="added")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.assigned.assign(self.assigned + 1.0)
            self.added.assign_add(1)
        return x


class Seen(keras.metrics.Metric):
    """The number of examples, written as Keras's own documentation writes a metric."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.examples = self.add_weight(shape=(), initializer="zeros", name="examples")

    def update_state(self, y: Any, prediction: Any, sample_weight: Any = None) -> None:
        self.examples.assign(self.examples + tf.cast(tf.shape(prediction)[0], "float32"))

    def result(self) -> Any:
        return self.examples


@pytest.fixture
def examples() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 8)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64")


@pytest.mark.parametrize("steps_per_execution", [1, 7])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_nothing_is_lost_and_nothing_counted_twice(workers, steps_per_execution, connect, examples):
    strategy = connect(workers)
    with strategy.scope():
        counter, normalization = Counter(), layers.BatchNormalization(momentum=0.9)
        kernel = {"kernel_constraint": keras.constraints.MaxNorm(0.5)}
        model = keras.Sequential(
            [keras.Input((8,)), counter, layers.Dense(16, **kernel), normalization, layers.Dense(2)]
        )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy", Seen()], steps_per_execution=steps_per_execution)
    seen: list[float] = []
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["seen"]))
    history = model.fit(*examples, batch_size=BATCH, epochs=EPOCHS, callbacks=[watch], verbose=0).history

    assert int(model.optimizer.iterations) == STEPS
    assert float(counter.assigned) == int(counter.added) == STEPS
    assert history["seen"] == [EXAMPLES] * EPOCHS
    (mean,) = (metric for metric in model.metrics if metric.name == "loss")
    assert float(mean.count) == EXAMPLES
    ends = [
        min(end, EXAMPLES)
        for end in range(
            BATCH * steps_per_execution, EXAMPLES + BATCH * steps_per_execution, BATCH * steps_per_execution
        )
    ]
    assert seen == ends * EPOCHS, "each report speaks of the steps up to it"
    assert np.linalg.norm(model.layers[1].kernel.numpy(), axis=0).max() <= 0.5 + 1e-6
    assert normalization.moving_variance.numpy().min() > 0
    by_worker = model.train_function.steps_by_worker
    assert sum(by_worker.values()) == STEPS
    assert set(by_worker) == set(range(workers)), "every worker took part"


def test_moving_averages_stay_sound_with_many_steps_in_flight(connect, examples):
    with connect(8).scope():
        normalization = layers.BatchNormalization(momentum=0.9)
        model = keras.Sequential([keras.Input((8,)), normalization, layers.Dense(1)])
    model.compile("sgd", "mse")
    x = 3 * examples[0]  # variance 9, far from where the average starts
    lowest: list[float] = []

    def watch(batch: int, logs: Any) -> None:
        if batch % 20 == 0:
            lowest.append(float(normalization.moving_variance.numpy().min()))

    model.fit(
        x,
        examples[1],
        batch_size=BATCH,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=watch)],
    )
    assert min(lowest) > 0.5
    np.testing.assert_allclose(normalization.moving_variance.numpy(), x.var(axis=0), rtol=0.5)


def test_gradient_accumulation_and_weight_averages_count_every_step(three_workers, examples):
    with three_workers.scope():
        model = keras.Sequential([keras.Input((8,)), layers.Dense(2)])
    optimizer = keras.optimizers.SGD(
        0.01, gradient_accumulation_steps=4, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(*examples, batch_size=BATCH, epochs=EPOCHS, verbose=0).history["loss"]
    assert int(optimizer.iterations) == STEPS // 4
    assert losses[-1] < losses[0]


class DrawsMask(keras.Model):
    """Logs a number that tells which dropout mask a step drew."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = layers.Dropout(0.5, seed=11)
        self.weight = layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.weight(self.dropout(x, training=training))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        kept = self.dropout(tf.ones_like(x), training=True)[0] > 0
        powers = 2.0 ** tf.range(tf.shape(kept)[0], dtype="float32")
        return {"mask": tf.reduce_sum(tf.where(kept, powers, 0.0))}


@pytest.mark.parametrize("workers", [1, 3])
def test_each_step_draws_the_mask_that_local_keras_draws_for_it(workers, connect):
    def masks(strategy: Any) -> list[float]:
        with strategy.scope():
            model = DrawsMask()
        model.compile("sgd", "mse", jit_compile=False)
        drawn: list[float] = []
        watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: drawn.append(logs["mask"]))
        model.fit(np.ones((80, 20), "float32"), np.ones((80, 1)), batch_size=4, epochs=2, callbacks=[watch], verbose=0)
        return drawn

    cluster = masks(connect(workers))
    assert cluster == masks(tf.distribute.get_strategy())
    assert len(set(cluster)) == len(cluster) == 40, "no mask came twice"
