"""What goes in: every kind of data, each element exactly once an epoch; and what `evaluate` and `predict` give."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.training import scripts


class Visits(keras.Model):
    """Counts how often each element was trained on, in a variable of the parameter servers."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.visits = self.add_weight(shape=(elements,), initializer="zeros", trainable=False, name="visits")
        self.scale = layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            ids = tf.cast(tf.reshape(x, [-1]), "int32")
            self.visits.assign_add(tf.math.bincount(ids, minlength=self.visits.shape[0], dtype="float32"))
        return self.scale(x)


def visits(strategy: Any, dataset: tf.data.Dataset, elements: int, **fit: Any) -> tuple[np.ndarray, keras.Model]:
    with strategy.scope():
        model = Visits(elements)
    model.compile("sgd", "mse", steps_per_execution=fit.pop("steps_per_execution", 1))
    model.fit(dataset.map(lambda i: (tf.cast(i, "float32")[:, None] / 1.0, i * 0.0)), shuffle=False, verbose=0, **fit)
    return model.visits.numpy(), model


def batches(elements: int, size: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(elements, output_type="float32").batch(size)


@pytest.mark.parametrize("steps_per_execution", [1, 4])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_finite_dataset_is_visited_exactly_once_an_epoch(workers, steps_per_execution, connect):
    counted, model = visits(connect(workers), batches(103, 10), 103, epochs=3, steps_per_execution=steps_per_execution)
    np.testing.assert_array_equal(counted, np.full(103, 3))
    assert int(model.optimizer.iterations) == 3 * 11


def test_a_dataset_of_unknown_size_counts_what_was_trained(three_workers):
    unknown = batches(40, 10).filter(lambda _: True)
    counted, model = visits(three_workers, unknown, 40, epochs=3)
    np.testing.assert_array_equal(counted, np.full(40, 3))
    assert int(model.optimizer.iterations) == 3 * 4


def test_no_batch_of_an_infinite_dataset_is_trained_twice(three_workers):
    endless = tf.data.Dataset.range(10_000, output_type="float32").batch(4)
    counted, model = visits(three_workers, endless, 10_000, epochs=2, steps_per_epoch=25)
    np.testing.assert_array_equal(counted, np.arange(10_000) < 2 * 25 * 4)
    assert int(model.optimizer.iterations) == 50


def test_steps_per_epoch_is_kept_when_executions_do_not_divide_it(three_workers):
    endless = batches(40, 4).repeat()
    _, model = visits(three_workers, endless, 40, steps_per_epoch=50, steps_per_execution=7)
    assert int(model.optimizer.iterations) == 50


def test_data_that_ends_early_warns_as_keras_does_and_goes_on(three_workers):
    with pytest.warns(UserWarning, match="Your input ran out of data"):
        counted, model = visits(three_workers, batches(110, 10), 110, epochs=3, steps_per_epoch=8)
    # Keras goes on where an epoch stopped, ends the second early, and starts over for the third: 8 + 3 + 8.
    assert int(model.optimizer.iterations) == 19
    np.testing.assert_array_equal(counted, np.where(np.arange(110) < 80, 2, 1))


def classifier(strategy: Any, **compiled: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((20,)), layers.Dense(8, activation="relu"), layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], weighted_metrics=[], jit_compile=False, **compiled)
    return model


FITS = {
    "arrays": lambda x, y: {"x": x, "y": y, "batch_size": 10, "shuffle": False},
    "sample weights": lambda x, y: {"x": x, "y": y, "sample_weight": x[:, 0] ** 2, "batch_size": 10, "shuffle": False},
    "class weights": lambda x, y: {"x": x, "y": y, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}, "shuffle": False},
    "validation split": lambda x, y: {"x": x, "y": y, "validation_split": 0.2, "shuffle": False},
    "validation data": lambda x, y: {"x": x, "y": y, "validation_data": (x[:33], y[:33]), "shuffle": False},
    "generator": lambda x, y: {"x": ((x[i : i + 10], y[i : i + 10]) for i in range(0, 100, 10)), "shuffle": False},
    "tensors": lambda x, y: {"x": tf.constant(x), "y": tf.constant(y), "shuffle": False},
    "shuffled arrays": lambda x, y: {"x": x, "y": y, "batch_size": 10},
}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # local Keras, at the end of a generator
@pytest.mark.parametrize("name", FITS)
def test_one_worker_trains_on_any_input_as_keras_does(name, one_worker, samples):
    def train(strategy: Any) -> Any:
        model = classifier(strategy)
        keras.utils.set_random_seed(2)
        history = model.fit(**FITS[name](*samples), epochs=1 if name == "generator" else 2, verbose=0).history
        return history, model.get_weights()

    history, weights = train(one_worker)
    local_history, local_weights = train(tf.distribute.get_strategy())
    assert list(history) == list(local_history)
    for key, values in local_history.items():
        np.testing.assert_allclose(history[key], values, rtol=1e-6, err_msg=key)
    for weight, local in zip(weights, local_weights, strict=True):
        np.testing.assert_allclose(weight, local, rtol=1e-5, atol=1e-6)


def test_inputs_by_name(one_worker, samples):
    with one_worker.scope():
        left, right = keras.Input((20,), name="left"), keras.Input((20,), name="right")
        model = keras.Model([left, right], {"sum": layers.Dense(1)(left + right), "right": layers.Dense(1)(right)})
    model.compile("sgd", {"sum": "mse", "right": "mae"})
    x, _ = samples
    data = {"left": x, "right": 2 * x}, {"sum": x[:, :1], "right": x[:, 1:2]}
    assert len(model.fit(*data, epochs=2, verbose=0).history["loss"]) == 2
    assert {name: value.shape for name, value in model.predict(data[0], verbose=0).items()} == {
        "sum": (103, 1),
        "right": (103, 1),
    }


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_evaluate_and_predict_equal_keras(steps_per_execution, three_workers, samples):
    x, y = samples
    model = classifier(three_workers, steps_per_execution=steps_per_execution)
    local = classifier(tf.distribute.get_strategy())
    model.fit(x, y, epochs=1, verbose=0)
    local.set_weights(model.get_weights())
    np.testing.assert_allclose(
        model.evaluate(x, y, batch_size=10, verbose=0), local.evaluate(x, y, batch_size=10, verbose=0), rtol=1e-6
    )
    outputs = model.predict(x, batch_size=10, verbose=0)
    np.testing.assert_allclose(outputs, local.predict(x, batch_size=10, verbose=0), rtol=1e-6)


def test_single_batches(three_workers, samples):
    x, y = samples[0][:10], samples[1][:10]
    model, local = classifier(three_workers), classifier(tf.distribute.get_strategy())
    for _ in range(3):
        np.testing.assert_allclose(model.train_on_batch(x, y), local.train_on_batch(x, y), rtol=1e-5)
    np.testing.assert_allclose(model.test_on_batch(x, y), local.test_on_batch(x, y), rtol=1e-5)
    np.testing.assert_allclose(model.predict_on_batch(x), local.predict_on_batch(x), rtol=1e-5)
    assert int(model.optimizer.iterations) == 3


def test_an_empty_dataset_ends_and_the_next_fit_works(three_workers, samples):
    model = classifier(three_workers)
    empty = tf.data.Dataset.from_tensor_slices(samples).take(0).batch(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's own, about the data
        model.fit(empty, verbose=0)
    model.fit(*samples, batch_size=10, verbose=0)
    assert int(model.optimizer.iterations) == 11


def test_a_dataset_made_before_the_cluster_is_connected():
    counted = scripts.run(
        """
import json, warnings
warnings.simplefilter("ignore")
import keras, numpy as np, tensorflow as tf, tfps

def elements():
    yield from ((np.float32([i]), np.float32([i])) for i in range(20))

signature = (tf.TensorSpec((1,)), tf.TensorSpec((1,)))
sliced = tf.data.Dataset.from_tensor_slices((np.ones((20, 1)), np.ones((20, 1)))).map(lambda a, b: (2 * a, b))
generated = tf.data.Dataset.from_generator(elements, output_signature=signature)
ready = sliced.batch(5), generated.batch(5)
strategy = tfps.ParameterServerStrategy(tfps.LocalCluster(2, 1))
with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
counts = []
for dataset in (*ready, sliced.batch(4), generated.batch(10)):
    before = int(model.optimizer.iterations)
    model.fit(dataset, verbose=0)
    counts.append(int(model.optimizer.iterations) - before)
print(json.dumps(counts))
"""
    )
    assert counted == [4, 4, 5, 2]
