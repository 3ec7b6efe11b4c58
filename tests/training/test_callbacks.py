"""Callbacks see and do on one worker what they see and do in plain Keras, batch by batch."""

from __future__ import annotations

import csv
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import callbacks, layers

from tests.training.models import Trained, assert_equal, named

# Plain Keras says so of every dataset, since `shuffle=True` is the default of `fit`.
pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")


class Recorder(callbacks.Callback):
    """Writes down which batches and epochs it sees, with their logs, and the weights at each."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def note(self, event, index, logs):
        logs = {name: round(float(value), 5) for name, value in (logs or {}).items()}
        self.seen.append((event, index, logs, float(np.sum(self.model.get_weights()[0]).round(4))))

    def on_train_batch_begin(self, batch, logs=None):
        self.note("begins", batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self.note("ends", batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self.note("evaluated", batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch", epoch, logs)


class RateByBatch(callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (1 + batch)


class StopsAtBatch(callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 4:
            self.model.stop_training = True


class ShrinksWeights(callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        kernel = self.model.trainable_variables[0]
        kernel.assign(0.9 * kernel)


class ReadsAndResetsMetrics(callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append([round(float(value), 5) for value in self.model.get_metrics_result().values()])
        if batch == 5:
            self.model.reset_metrics()


class CallsModel(callbacks.Callback):
    """Draws a dropout mask between batches."""

    def on_train_batch_end(self, batch, logs=None):
        self.model(np.ones((5, 20), "float32"), training=True)


class UsesModel(callbacks.Callback):
    """Evaluates and predicts in the midst of training."""

    def on_epoch_end(self, epoch, logs=None):
        x = np.ones((5, 20), "float32")
        logs["evaluated"] = self.model.evaluate(x, np.zeros(5, "int64"), verbose=0)[0]
        logs["predicted"] = float(self.model.predict(x, verbose=0)[0, 0])


CALLBACKS = {
    "sees every batch": Recorder,
    "sets the learning rate at batches": RateByBatch,
    "stops at a batch": StopsAtBatch,
    "writes weights at batches": ShrinksWeights,
    "reads and resets metrics": ReadsAndResetsMetrics,
    "calls the model": CallsModel,
    "uses the model": UsesModel,
    "LearningRateScheduler": lambda: callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
    "ReduceLROnPlateau": lambda: callbacks.ReduceLROnPlateau("loss", factor=0.3, patience=1, min_delta=0.5),
    "EarlyStopping": lambda: callbacks.EarlyStopping("val_loss", patience=1, min_delta=1.0, restore_best_weights=True),
    "TerminateOnNaN": callbacks.TerminateOnNaN,
    "SwapEMAWeights": lambda: callbacks.SwapEMAWeights(swap_on_epoch=True),
    "SwapEMAWeights at evaluation": callbacks.SwapEMAWeights,
    "LambdaCallback": lambda: callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: logs["loss"] + batch),
}


def trained(make, samples, strategy=None, rate=0.1, **options):
    keras.utils.set_random_seed(3)
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((20,)), layers.Dropout(0.2), layers.Dense(3, activation="softmax")])
    optimizer = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    callback = make()
    history = model.fit(
        *samples,
        batch_size=10,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=(samples[0][:20], samples[1][:20]),
        callbacks=[callback],
        **options,
    ).history
    return Trained(named(model.variables), named(optimizer.variables), history), callback


@pytest.mark.parametrize("name", CALLBACKS)
def test_training_with_it_equals_keras(name, one_worker, samples):
    cluster, ours = trained(CALLBACKS[name], samples, one_worker)
    local, theirs = trained(CALLBACKS[name], samples)
    assert_equal(cluster, local, history_within=1e-6)
    assert getattr(ours, "seen", None) == getattr(theirs, "seen", None)


def test_callbacks_at_batches_find_nothing_under_way(three_workers, samples):
    seen = []

    class Counts(callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((batch, int(self.model.optimizer.iterations)))

    trained(Counts, samples, three_workers)
    # Rounds of three: whoever sees the first batch of a round sees the model after the whole round.
    one_epoch = [(batch, min(batch // 3 * 3 + 3, 11)) for batch in range(11)]
    assert seen == [(batch, 11 * epoch + count) for epoch in range(3) for batch, count in one_epoch]


@pytest.mark.parametrize("workers", [1, 3])
def test_not_a_number_ends_training(workers, connect, samples):
    x = np.where(np.arange(103)[:, None] == 45, np.nan, samples[0]).astype("float32")
    result, _ = trained(callbacks.TerminateOnNaN, (x, samples[1]), connect(workers))
    assert len(result.history["loss"]) == 1
    assert np.isnan(result.history["loss"][0])


def test_a_csv_file_of_the_epochs(one_worker, samples, tmp_path):
    def rows(strategy, path):
        trained(lambda: callbacks.CSVLogger(path), samples, strategy)
        return list(csv.DictReader(Path(path).read_text().splitlines()))

    cluster, local = rows(one_worker, tmp_path / "cluster.csv"), rows(None, tmp_path / "local.csv")
    assert [list(row) for row in cluster] == [list(row) for row in local]
    for ours, theirs in zip(cluster, local, strict=True):
        assert [float(value) for value in ours.values()] == pytest.approx([float(value) for value in theirs.values()])


def test_tensorboard_at_batches(one_worker, samples, tmp_path):
    def logged(strategy, folder):
        trained(lambda: callbacks.TensorBoard(folder, update_freq=2), samples, strategy)
        scalars = {}
        for file in sorted(Path(folder, "train").glob("events*")):
            for record in tf.compat.v1.train.summary_iterator(str(file)):
                for value in record.summary.value:
                    if value.tag.startswith("batch_"):
                        scalars[value.tag, record.step] = float(tf.make_ndarray(value.tensor))
        return scalars

    cluster, local = logged(one_worker, tmp_path / "cluster"), logged(None, tmp_path / "local")
    assert len(local) > 20
    assert cluster == pytest.approx(local)
