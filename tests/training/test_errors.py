"""What goes wrong arrives once, with its own message and soon, and leaves a cluster that can go on."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfps.errors import UnsupportedError

# Plain Keras says so of every dataset, since `shuffle=True` is the default of `fit`.
pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")


class Picky(layers.Layer):
    """Refuses large values on the worker."""

    def call(self, x):
        with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(x), 50.0, "no such value")]):
            return tf.identity(x)


class At(keras.callbacks.Callback):
    """Does something after the batch of that ordinal."""

    def __init__(self, batch, action):
        super().__init__()
        self.batch, self.action = batch, action

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            self.action()


def throw(error):
    raise error


@pytest.fixture
def model(three_workers):
    with three_workers.scope():
        model = keras.Sequential([keras.Input((20,)), Picky(), layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def assert_goes_on(model, samples, before=None):
    """The next `fit` counts what it trains, exactly."""
    before = int(model.optimizer.iterations) if before is None else before
    model.fit(*samples, batch_size=10, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) - before == 22
    assert float(model.metrics[0].count) == 103


def test_an_error_in_the_dataset(model, samples):
    x, y = samples

    def check(a, b):
        with tf.control_dependencies([tf.debugging.assert_none_equal(b, tf.cast(7, b.dtype), message="no such class")]):
            return a, tf.identity(b)

    labels = np.concatenate([y[:60], [7], y[61:]])
    began = time.monotonic()
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such class"):
        model.fit(tf.data.Dataset.from_tensor_slices((x, labels)).map(check).batch(10), verbose=0)
    assert time.monotonic() - began < 10
    assert_goes_on(model, samples)


def test_an_error_in_a_generator(model, samples):
    def batches():
        yield samples[0][:10], samples[1][:10]
        raise LookupError("no second batch")

    with pytest.raises((LookupError, tf.errors.OpError), match="no second batch"):
        model.fit(batches(), verbose=0)
    assert_goes_on(model, samples)


@pytest.mark.parametrize("steps_per_execution", [1, 7])
def test_an_error_in_the_model(steps_per_execution, model, samples):
    x, y = samples
    model.steps_per_execution = steps_per_execution
    bad = np.where(np.arange(103)[:, None] == 33, 100, x)
    began = time.monotonic()
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such value"):
        model.fit(bad, y, batch_size=10, shuffle=False, verbose=0)
    assert time.monotonic() - began < 10
    assert_goes_on(model, samples)


def test_an_error_in_evaluate_and_predict(model, samples):
    x, y = samples
    for call in (lambda: model.evaluate(100 + x, y, verbose=0), lambda: model.predict(100 + x, verbose=0)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="no such value"):
            call()
    assert model.evaluate(x, y, verbose=0)
    assert_goes_on(model, samples)


@pytest.mark.parametrize("error", [ZeroDivisionError("in a callback"), KeyboardInterrupt()], ids=repr)
def test_an_exception_in_a_callback(error, model, samples):
    with pytest.raises(type(error)) as raised:
        model.fit(*samples, batch_size=10, verbose=0, callbacks=[At(4, lambda: throw(error))])
    assert raised.value is error
    # Steps that ran ahead are over by now, and counted.
    iterations = int(model.optimizer.iterations)
    assert 5 <= iterations <= 11
    assert_goes_on(model, samples, before=iterations)


def test_shapes_that_do_not_fit(model, samples):
    x, y = samples
    with pytest.raises(ValueError, match="cardinality"):
        model.fit(x, y[:10], verbose=0)
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 20"):
        model.fit(x[:, :3], y, verbose=0)
    assert_goes_on(model, samples)


def test_run_eagerly_is_refused(model, samples):
    model.compile("sgd", "mse", run_eagerly=True)
    for call in (model.fit, model.evaluate):
        with pytest.raises(UnsupportedError, match="run_eagerly=True"):
            call(*samples, verbose=0)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_model_made_outside_is_not_used_inside_and_stays_as_it_was(method, three_workers, samples):
    model = keras.Sequential([keras.Input((20,)), layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(*samples, batch_size=10, verbose=0)
    evaluated = model.evaluate(*samples, verbose=0)
    data = samples if method != "predict" else samples[:1]
    with three_workers.scope(), pytest.raises(UnsupportedError, match=r"Received: one that was made outside and is"):
        getattr(model, method)(*data, verbose=0)
    assert model.evaluate(*samples, verbose=0) == evaluated
    model.fit(*samples, batch_size=10, verbose=0)
    assert int(model.optimizer.iterations) == 22


def test_training_that_is_stopped_stops_at_that_batch(model, samples):
    def stop():
        model.stop_training = True

    seen = []
    at_batch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    model.fit(*samples, batch_size=1, epochs=3, verbose=0, callbacks=[At(2, stop), at_batch])
    assert seen == [0, 1, 2]
    # Nothing goes ahead of callbacks that act at batches, but a round of one step per worker.
    assert int(model.optimizer.iterations) == 3
    assert float(model.metrics[0].count) == 3
    assert_goes_on(model, samples)


def test_steps_go_ahead_of_the_reports_by_a_bounded_number(model, samples):
    def stop():
        model.stop_training = True

    ahead = []
    at_first = At(0, stop)
    at_first.async_safe = True  # Keras's word for a callback that need not see the model at a batch
    for _ in range(6):
        before = int(model.optimizer.iterations)
        model.fit(*samples, batch_size=1, verbose=0, callbacks=[at_first])
        ahead.append(int(model.optimizer.iterations) - before - 1)
    # Two a worker, or sixteen while the first one, which a worker has yet to prepare for, is slow.
    assert min(ahead) <= 2 * 3
    assert max(ahead) <= 16 * 3


@pytest.mark.parametrize("inside", [True, False], ids=["inside the scope", "outside the scope"])
def test_compile_inside_or_outside_the_scope(inside, three_workers, samples):
    """F6: optimizer and metrics may be instances that were made outside, slots and all."""

    def parts():
        return keras.optimizers.Adam(0.01), [keras.metrics.SparseCategoricalAccuracy()]

    with three_workers.scope():
        model = keras.Sequential([keras.Input((20,)), layers.Dense(3, activation="softmax")])
        if inside:
            optimizer, metrics = parts()
            model.compile(optimizer, "sparse_categorical_crossentropy", metrics=metrics)
    if not inside:
        optimizer, metrics = parts()
        optimizer.build(model.trainable_variables)
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=metrics)
    history = model.fit(*samples, batch_size=10, epochs=2, verbose=0).history
    assert list(history) == ["loss", "sparse_categorical_accuracy"]
    assert int(optimizer.iterations) == 22
    assert float(metrics[0].count) == 103
    assert all("/job:ps/" in variable.value.device for variable in optimizer.variables)


def test_an_optimizer_keeps_its_values_when_it_moves(model, samples):
    optimizer = keras.optimizers.SGD(0.125)
    optimizer.iterations.assign(5)
    model.compile(optimizer, model.loss)
    model.fit(*samples, batch_size=103, verbose=0)
    assert float(optimizer.learning_rate) == 0.125
    assert int(optimizer.iterations) == 6


def test_a_base_that_was_made_outside_trains_once_it_is_thawed(one_worker, samples):
    def fine_tuned(strategy):
        keras.utils.set_random_seed(3)
        base = keras.Sequential([keras.Input((20,)), layers.Dense(6), layers.BatchNormalization()])
        base.trainable = False
        with strategy.scope():
            model = keras.Sequential([keras.Input((20,)), base, layers.Dense(3, activation="softmax")])
        for base.trainable in (False, True):
            model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
            model.fit(*samples, batch_size=10, shuffle=False, verbose=0)
        return model.get_weights()

    for ours, theirs in zip(fine_tuned(one_worker), fine_tuned(tf.distribute.get_strategy()), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_compiling_again_starts_again(model, samples):
    model.fit(*samples, batch_size=10, verbose=0)
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    weights = model.get_weights()
    model.fit(samples[0], samples[0][:, :3], batch_size=10, verbose=0)
    assert int(model.optimizer.iterations) == 11
    np.testing.assert_equal(model.get_weights(), weights)


def test_early_stopping_restores_the_best_weights(model, samples):
    losses = iter([3.0, 1.0, 2.0, 2.5, 0.5])
    set_loss = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(score=next(losses)))
    weights = []
    keep = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: weights.append(model.get_weights()))
    stop = keras.callbacks.EarlyStopping("score", mode="min", patience=2, restore_best_weights=True)
    history = model.fit(*samples, epochs=5, verbose=0, callbacks=[set_loss, keep, stop]).history
    assert len(history["loss"]) == 4
    np.testing.assert_equal(model.get_weights(), weights[1])


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_checkpoint_loads_in_plain_keras(name, three_workers, samples, tmp_path):
    def build():
        return keras.Sequential([keras.Input((20,)), layers.Dense(3), layers.BatchNormalization()])

    with three_workers.scope():
        model = build()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    path = tmp_path / name
    save = keras.callbacks.ModelCheckpoint(path, save_weights_only=name.endswith(".weights.h5"))
    model.fit(*samples, epochs=2, verbose=0, callbacks=[save])
    if save.save_weights_only:
        loaded = build()
        loaded.load_weights(path)
    else:
        loaded = keras.saving.load_model(path)
        assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations)
    weights = model.get_weights()
    np.testing.assert_equal(loaded.get_weights(), weights)
    x, _ = samples
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    model.set_weights([0 * weight for weight in weights])
    model.load_weights(path)
    np.testing.assert_equal(model.get_weights(), weights)


def test_tensorboard_at_epochs(model, samples, tmp_path):
    pytest.importorskip("tensorboard")
    model.fit(*samples, epochs=2, verbose=0, callbacks=[keras.callbacks.TensorBoard(tmp_path, histogram_freq=1)])
    (events,) = tmp_path.glob("train/events*")
    tags = {value.tag for event in tf.compat.v1.train.summary_iterator(str(events)) for value in event.summary.value}
    assert {"epoch_loss", "epoch_accuracy"} <= tags
