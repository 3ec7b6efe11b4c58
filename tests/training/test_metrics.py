"""Metrics of any kind, evaluated by several workers, equal Keras's (K17)."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, metrics

from tests.training.models import train
from tfps.errors import UnsupportedError

SIZE, BATCH_SIZE = 103, 10


class Kept(metrics.Metric):
    """A metric whose one number follows from itself and a batch by a rule of its own."""

    def __init__(self, rule, start=0.0, name="kept"):
        super().__init__(name=name)
        self.rule, self.start = rule, start
        self.value = self.add_weight(shape=(), initializer=keras.initializers.Constant(start), name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(self.rule(self.value, tf.reduce_mean(y_pred)))

    def reset_state(self):
        self.value.assign(self.start)

    def result(self):
        return self.value


class Spread(metrics.Metric):
    """Largest minus smallest, with a count that depends on another state."""

    def __init__(self):
        super().__init__(name="spread")
        self.low = self.add_weight(shape=(), initializer=keras.initializers.Constant(9.0), name="low")
        self.high = self.add_weight(shape=(), initializer=keras.initializers.Constant(-9.0), name="high")
        self.records = self.add_weight(shape=(), initializer="zeros", name="records")

    def update_state(self, y_true, y_pred, sample_weight=None):
        highest = tf.reduce_max(y_pred)
        self.records.assign_add(tf.cast(highest > self.high, "float32"))
        self.high.assign(tf.maximum(self.high, highest))
        self.low.assign(tf.minimum(self.low, tf.reduce_min(y_pred)))

    def reset_state(self):
        self.low.assign(9.0)
        self.high.assign(-9.0)
        self.records.assign(0.0)

    def result(self):
        return {"spread": self.high - self.low, "records": self.records + 0}


class LargestInBranch(metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        def keep():
            self.value.assign(tf.maximum(self.value, tf.reduce_max(y_pred)))
            return 0

        tf.cond(tf.reduce_max(y_pred) > 0, keep, lambda: 0)

    def result(self):
        return self.value


PROBABILITIES = {
    "AUC": lambda: metrics.AUC(num_thresholds=50, name="auc"),
    "precision": lambda: metrics.Precision(thresholds=[0.2, 0.4]),
    "recall": metrics.Recall,
    "F1": lambda: metrics.F1Score(average="macro"),
    "mean IoU": lambda: metrics.OneHotMeanIoU(3),
    "top 2": lambda: metrics.TopKCategoricalAccuracy(2),
    "R2": metrics.R2Score,
    "largest": lambda: Kept(tf.maximum),
    "last": lambda: Kept(lambda old, new: new),
    "moving average": lambda: Kept(lambda old, new: 0.9 * old + 0.1 * new),
    "product": lambda: Kept(lambda old, new: old * (1 + new), start=1.0),
    "several states": Spread,
}


@pytest.fixture(scope="module")
def examples():
    random = np.random.default_rng(1)
    x = random.normal(size=(SIZE, 6)).astype("float32")
    return x, np.eye(3, dtype="float32")[random.integers(0, 3, size=SIZE)]


def classifier():
    return keras.Sequential([keras.Input((6,)), layers.Dense(3, activation="softmax")])


@pytest.mark.parametrize("steps_per_execution", [1, 7])
def test_evaluation_by_several_workers_equals_keras(steps_per_execution, three_workers, examples):
    def evaluated(strategy, **options):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = classifier()
        compiled = [make() for make in PROBABILITIES.values()]
        for name, metric in zip(PROBABILITIES, compiled, strict=True):
            metric.name = name
        model.compile(loss="categorical_crossentropy", metrics=compiled, **options)
        return model.evaluate(*examples, batch_size=BATCH_SIZE, verbose=0, return_dict=True)

    local = evaluated(tf.distribute.get_strategy(), jit_compile=False)
    cluster = evaluated(three_workers, steps_per_execution=steps_per_execution)
    assert set(PROBABILITIES) - {"several states"} < set(local)
    assert list(cluster) == list(local)
    for name, value in local.items():
        np.testing.assert_allclose(cluster[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["largest", "moving average", "several states", "AUC"])
def test_training_with_one_worker_equals_keras(name, one_worker, examples):
    def history(strategy=None):
        compiled = {"optimizer": "sgd", "loss": "categorical_crossentropy", "metrics": [PROBABILITIES[name]()]}
        return train(classifier, examples, strategy, **compiled).history

    cluster, local = history(one_worker), history()
    assert list(cluster) == list(local)
    for key, values in local.items():
        np.testing.assert_allclose(cluster[key], values, rtol=1e-6, err_msg=key)


def test_what_workers_would_overwrite_for_one_another_is_refused(three_workers, examples):
    with three_workers.scope():
        model = classifier()
    model.compile(loss="mse", metrics=[LargestInBranch()])
    with pytest.raises(UnsupportedError, match=r"a metric's state must only be added to. Received: '.*value"):
        model.evaluate(*examples, verbose=0)


def test_one_worker_overwrites_nothing_of_others(one_worker, examples):
    def largest(strategy):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = classifier()
        model.compile(loss="mse", metrics=[LargestInBranch()], jit_compile=False)
        return model.evaluate(*examples, verbose=0)[1]

    assert largest(one_worker) == pytest.approx(largest(tf.distribute.get_strategy()), rel=1e-6)
