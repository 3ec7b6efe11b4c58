"""One worker trains as plain Keras does: weights, optimizer slots and history, for every optimizer (K18)."""

from __future__ import annotations

import keras
import pytest
from keras import layers, optimizers

from tests.training import scripts
from tests.training.models import assert_equal, train

OPTIMIZERS = {
    "SGD": lambda: optimizers.SGD(0.05),
    "momentum": lambda: optimizers.SGD(0.05, momentum=0.9),
    "nesterov": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "Adam": lambda: optimizers.Adam(0.01),
    "amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.01, weight_decay=0.01),
    "RMSprop": lambda: optimizers.RMSprop(0.01),
    "centered RMSprop": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "Adagrad": lambda: optimizers.Adagrad(0.05),
    "Adadelta": lambda: optimizers.Adadelta(1.0),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "Ftrl": lambda: optimizers.Ftrl(0.05),
    "Lion": lambda: optimizers.Lion(0.001),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "Muon": lambda: optimizers.Muon(0.01),
    "loss scale": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01), dynamic_growth_steps=10),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.CosineDecay(0.01, 50)),
    "clipnorm": lambda: optimizers.Adam(0.01, clipnorm=0.5),
    "global_clipnorm": lambda: optimizers.Adam(0.01, global_clipnorm=0.5),
    "clipvalue": lambda: optimizers.Adam(0.01, clipvalue=0.1),
    "gradient accumulation": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=3),
    "EMA with overwrite": lambda: optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=5),
}


def dense_model(**kernel):
    return keras.Sequential(
        [
            keras.Input((20,)),
            layers.Dense(8, activation="relu", **kernel),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3, activation="softmax"),
        ]
    )


def trained(optimizer, samples, strategy=None, build=dense_model, **options):
    return train(
        build,
        samples,
        strategy,
        optimizer=optimizer(),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        **options,
    )


def with_reasons(names):
    """Muon of Keras 3.12 looks for `path` on TensorFlow's variables, under any strategy."""
    broken = pytest.mark.skipif(keras.__version__.startswith("3.12."), reason="Muon of Keras 3.12 knows no strategies")
    return [pytest.param(name, marks=[broken] if name == "Muon" else []) for name in names]


@pytest.mark.parametrize("name", with_reasons(OPTIMIZERS))
def test_every_optimizer_equals_keras_to_the_last_bit(name, one_worker, samples):
    cluster = trained(OPTIMIZERS[name], samples, one_worker)
    assert_equal(cluster, trained(OPTIMIZERS[name], samples))


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_constraints_and_regularizers_equal_keras(name, one_worker, samples):
    def build():
        return dense_model(kernel_constraint=keras.constraints.MaxNorm(0.8), kernel_regularizer="l2")

    cluster = trained(OPTIMIZERS[name], samples, one_worker, build)
    assert_equal(cluster, trained(OPTIMIZERS[name], samples, build=build))


@pytest.mark.parametrize("name", ["Adam", "gradient accumulation"])
def test_several_steps_per_execution_equal_keras(name, one_worker, samples):
    cluster = trained(OPTIMIZERS[name], samples, one_worker, steps_per_execution=7)
    # The metrics of an execution are summed up before they are added to the epoch's.
    assert_equal(cluster, trained(OPTIMIZERS[name], samples), history_within=1e-6)


def test_numbers_stay_close_where_tensorflow_reorders_arithmetic():
    compared = scripts.run(
        """
import json
import numpy as np
import tfps
from tests.training.models import assert_close
from tests.training.test_parity import OPTIMIZERS, trained

random = np.random.default_rng(0)
samples = random.normal(size=(103, 20)).astype("float32"), random.integers(0, 3, size=103)
strategy = tfps.ParameterServerStrategy(tfps.LocalCluster(workers=1, ps=2))
names = ["momentum", "Adam", "global_clipnorm"]
for name in names:
    cluster = trained(OPTIMIZERS[name], samples, strategy)
    assert_close(cluster, trained(OPTIMIZERS[name], samples), within=1e-6)
print(json.dumps(names))
"""
    )
    assert compared == ["momentum", "Adam", "global_clipnorm"]
