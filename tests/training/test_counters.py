"""Whatever is counted is counted exactly, however many workers count at once (K12)."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

BATCHES, BATCH_SIZE = 60, 8


class Counter(layers.Layer):
    """Counts the training steps, twice."""

    def build(self, shape):
        self.assigned = self.add_weight(shape=(), initializer="zeros", trainable=False, name="assigned")
        self.added = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False, name="added")

    def call(self, x, training=False):
        if training:
            self.assigned.assign(self.assigned + 1.0)
            self.added.assign_add(1)
        return x


class Seen(keras.metrics.Metric):
    """Counts the examples, as a user would write it."""

    def __init__(self):
        super().__init__(name="seen")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign(self.total + tf.cast(tf.shape(y_pred)[0], "float32"))

    def result(self):
        return self.total


class SeenAtBatches(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def on_train_batch_end(self, batch, logs=None):
        self.epochs[-1].append((batch, logs["seen"]))


@pytest.fixture(scope="module")
def examples():
    x = np.random.default_rng(0).normal(size=(BATCHES * BATCH_SIZE, 8)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64")


def counting_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            Counter(),
            layers.Dense(16, kernel_constraint=keras.constraints.MaxNorm(0.5)),
            layers.BatchNormalization(momentum=0.9),
            layers.Dropout(0.2),
            layers.Dense(2),
        ]
    )


def compiled(model, optimizer, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy", Seen()], **options)
    return model


def fit(model, examples, epochs=2, **options):
    return model.fit(*examples, batch_size=BATCH_SIZE, epochs=epochs, verbose=0, **options)


@pytest.mark.parametrize("steps_per_execution", [1, 7])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_step_counts_once(workers, steps_per_execution, connect, examples):
    with connect(workers).scope():
        model = counting_model()
    compiled(model, keras.optimizers.SGD(0.5), steps_per_execution=steps_per_execution)
    batches = SeenAtBatches()
    history = fit(model, examples, callbacks=[batches]).history

    counter, dense, normalization = model.layers[:3]
    assert int(model.optimizer.iterations) == 2 * BATCHES
    assert int(counter.assigned) == int(counter.added) == 2 * BATCHES
    assert history["seen"] == [BATCHES * BATCH_SIZE] * 2
    for metric in (model.metrics[0], model.metrics[1].metrics[0]):
        assert float(metric.count) == BATCHES * BATCH_SIZE
    ends = [*range(steps_per_execution, BATCHES, steps_per_execution), BATCHES]
    assert batches.epochs == [[(end - 1, end * BATCH_SIZE) for end in ends]] * 2
    assert np.linalg.norm(dense.kernel.numpy(), axis=0).max() <= 0.5 + 1e-6
    assert normalization.moving_variance.numpy().min() > 0
    if workers > 1:
        assert len(model.train_function.steps_by_worker) == workers
    assert sum(model.train_function.steps_by_worker.values()) == 2 * BATCHES


@pytest.mark.parametrize(
    "options",
    [{"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 5}],
    ids=["gradient accumulation", "EMA with overwrite"],
)
def test_updates_with_a_branch_train(options, three_workers, examples):
    with three_workers.scope():
        model = counting_model()
    compiled(model, keras.optimizers.SGD(0.05, **options))
    losses = fit(model, examples, epochs=3).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    updates = 3 * BATCHES // options.get("gradient_accumulation_steps", 1)
    assert int(model.optimizer.iterations) == updates


def test_moving_averages_stay_where_values_are(connect, examples):
    """Replayed as differences against old reads they diverge, with 16 steps in flight (F45)."""
    x, y = examples
    with connect(8).scope():
        model = keras.Sequential([keras.Input((8,)), layers.BatchNormalization(momentum=0.9), layers.Dense(2)])
    compiled(model, keras.optimizers.SGD(0.0))
    fit(model, (3 + 2 * x, y), epochs=3)
    normalization = model.layers[0]
    np.testing.assert_allclose(normalization.moving_mean.numpy(), (3 + 2 * x).mean(0), atol=1)
    np.testing.assert_allclose(normalization.moving_variance.numpy(), (2 * x).var(0), rtol=0.7)


class Masks(keras.Model):
    """Logs the dropout mask of each step as a number."""

    def __init__(self):
        super().__init__()
        self.dropout = layers.Dropout(0.5, seed=11)

    def call(self, x, training=False):
        return x

    def train_step(self, data):
        mask = self.dropout(tf.ones((1, 30)), training=True) > 0
        return {"mask": tf.reduce_sum(tf.where(mask, 2 ** tf.range(30), 0))}


class MasksSeen(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.masks = []

    def on_train_batch_end(self, batch, logs=None):
        self.masks.append(int(logs["mask"]))


def masks_of(model, steps):
    model.compile(jit_compile=False)
    seen = MasksSeen()
    model.fit(np.ones((steps, 1)), batch_size=1, epochs=2, verbose=0, callbacks=[seen])
    return seen.masks


def test_every_step_draws_its_own_dropout_mask(three_workers):
    with three_workers.scope():
        model = Masks()
    masks = masks_of(model, steps=50)
    assert len(set(masks)) == 100
    assert masks == masks_of(Masks(), steps=50)
    assert len(model.train_function.steps_by_worker) == 3


def test_fits_one_after_the_other_go_on_drawing(three_workers):
    with three_workers.scope():
        model = Masks()
    local = Masks()
    assert [masks_of(model, 5), masks_of(model, 4)] == [masks_of(local, 5), masks_of(local, 4)]
