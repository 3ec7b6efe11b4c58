"""What goes wrong, goes wrong once, with its own words, and leaves the cluster ready for the next call."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfps
from tfps.errors import UnsupportedError


class RefusesLargeValues(layers.Layer):
    def call(self, x: Any) -> Any:
        tf.debugging.assert_less(tf.reduce_max(x), 100.0, "the layer refuses this")
        return x


def model_of(strategy: Any, **compiled: Any) -> keras.Model:
    with strategy.scope():
        model = keras.Sequential([keras.Input((20,)), RefusesLargeValues(), layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": "sgd", "loss": loss, "metrics": ["accuracy"], **compiled})
    return model


def check_works(model: keras.Model, samples: Any) -> None:
    before = int(model.optimizer.iterations)
    history = model.fit(*samples, batch_size=10, verbose=0).history
    assert int(model.optimizer.iterations) - before == 11
    assert np.isfinite(history["loss"]).all()


def fails_in_dataset(model: keras.Model, x: np.ndarray, y: np.ndarray) -> None:
    def refuse(features: Any, label: Any) -> Any:
        tf.debugging.assert_less(tf.reduce_max(features), 100.0, "the dataset refuses this")
        return features, label

    x = x.copy()
    x[57] = 1000
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).map(refuse).batch(10), shuffle=False, verbose=0)


def fails_in_model(model: keras.Model, x: np.ndarray, y: np.ndarray) -> None:
    x = x.copy()
    x[57] = 1000
    model.fit(x, y, batch_size=10, shuffle=False, verbose=0)


def fails_in_callback(model: keras.Model, x: np.ndarray, y: np.ndarray) -> None:
    def stop(batch: int, logs: Any) -> None:
        if batch == 3:
            raise KeyError("the callback refuses this")

    model.fit(x, y, batch_size=10, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=stop)], verbose=0)


def is_interrupted(model: keras.Model, x: np.ndarray, y: np.ndarray) -> None:
    def stop(batch: int, logs: Any) -> None:
        raise KeyboardInterrupt("the callback refuses this")

    model.fit(x, y, batch_size=10, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=stop)], verbose=0)


def has_wrong_shape(model: keras.Model, x: np.ndarray, y: np.ndarray) -> None:
    model.fit(x[:, :7], y, verbose=0)


@pytest.mark.parametrize(
    ("fail", "error", "words"),
    [
        (fails_in_dataset, tf.errors.InvalidArgumentError, "the dataset refuses this"),
        (fails_in_model, tf.errors.InvalidArgumentError, "the layer refuses this"),
        (fails_in_callback, KeyError, "the callback refuses this"),
        (is_interrupted, KeyboardInterrupt, "the callback refuses this"),
        (has_wrong_shape, ValueError, "expected axis -1 of input shape to have value 20"),
    ],
)
def test_an_exception_arrives_once_and_training_goes_on(fail, error, words, three_workers, samples):
    model = model_of(three_workers)
    start = time.monotonic()
    with pytest.raises(error, match=words):
        fail(model, *samples)
    assert time.monotonic() - start < 30
    check_works(model, samples)


def test_running_eagerly_is_refused(three_workers, samples):
    with pytest.raises(UnsupportedError, match=r"run_eagerly=True.*without run_eagerly"):
        model_of(three_workers, run_eagerly=True).fit(*samples, verbose=0)


@pytest.mark.parametrize("inside", [True, False])
def test_compile_may_be_inside_or_outside_the_scope(inside, three_workers, samples):
    with three_workers.scope():
        model = keras.Sequential([keras.Input((20,)), layers.Dense(3)])
        if inside:
            model.compile("adam", "mse", metrics=[keras.metrics.MeanAbsoluteError()])
    if not inside:
        model.compile(keras.optimizers.Adam(), "mse", metrics=[keras.metrics.MeanAbsoluteError()])
    x, _ = samples
    assert set(model.fit(x, x[:, :3], epochs=2, verbose=0).history) == {"loss", "mean_absolute_error"}
    assert {row.ps for row in tfps.placement(model).variables} <= {0, 1}, "nothing stayed on the coordinator"


def test_a_compiled_optimizer_keeps_its_values_when_it_moves(three_workers, samples):
    optimizer = keras.optimizers.SGD(0.125)
    optimizer.iterations.assign(5)
    model = model_of(three_workers, optimizer=optimizer)
    model.fit(*samples, batch_size=103, verbose=0)
    assert float(optimizer.learning_rate) == 0.125
    assert int(optimizer.iterations) == 6


def test_callbacks_of_an_epoch(three_workers, samples, tmp_path: Path):
    model = model_of(three_workers)
    callbacks = [
        keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10.0),
        keras.callbacks.ModelCheckpoint(tmp_path / "all.weights.h5", save_weights_only=True),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras"),
        keras.callbacks.TensorBoard(tmp_path / "board"),
    ]
    history = model.fit(*samples, epochs=5, callbacks=callbacks, verbose=0).history
    assert len(history["loss"]) == 2, "stopped when the loss no longer fell by 10"
    assert list((tmp_path / "board" / "train").iterdir())
    weights = model.get_weights()
    model.set_weights([0 * weight for weight in weights])
    model.load_weights(tmp_path / "all.weights.h5")
    local = keras.models.load_model(tmp_path / "best.keras", custom_objects={"RefusesLargeValues": RefusesLargeValues})
    for weight, again, loaded in zip(weights, model.get_weights(), local.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, again)
        np.testing.assert_array_equal(weight, loaded)
    assert int(local.optimizer.iterations) == int(model.optimizer.iterations)
