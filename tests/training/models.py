"""Training the same model with plain Keras and on a cluster, and what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf


class Trained(NamedTuple):
    """What training leaves behind, as arrays and numbers."""

    variables: dict[str, np.ndarray]
    slots: dict[str, np.ndarray]
    history: dict[str, list[float]]


def train(build: Callable[[], keras.Model], data: Any, strategy: Any = None, **compiled: Any) -> Trained:
    """Build, compile and fit a model, locally or under `strategy`, the same way each time.

    Args:
        build: Makes the model; a model that it has compiled stays as compiled.
        data: What `fit` takes, as a tuple of arrays; it comes in batches of 10, in order, 5 times.
        strategy: A parameter-server strategy, or None for plain Keras.
        **compiled: What `compile` takes.
    """
    keras.utils.set_random_seed(3)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = build()
    if compiled:
        model.compile(**compiled, jit_compile=False)
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(10)
    history = model.fit(dataset, epochs=5, shuffle=False, verbose=0).history
    optimizer = getattr(model, "optimizer", None)
    return Trained(named(model.variables), named(optimizer.variables if optimizer else []), history)


def named(variables: list[keras.Variable]) -> dict[str, np.ndarray]:
    """The values of variables, each under its place and path (paths repeat)."""
    return {f"{place} {variable.path}": variable.numpy() for place, variable in enumerate(variables)}


def assert_equal(actual: Trained, expected: Trained, history_within: float = 0) -> None:
    """Equal to the last bit, with the same names in the same order; the history within a relative tolerance."""
    assert list(actual.history) == list(expected.history)
    for name, values in expected.history.items():
        np.testing.assert_allclose(actual.history[name], values, rtol=history_within, err_msg=name)
    for ours, theirs in ((actual.variables, expected.variables), (actual.slots, expected.slots)):
        assert len(ours) == len(theirs)
        for (name, value), reference in zip(ours.items(), theirs.values(), strict=True):
            np.testing.assert_array_equal(value, reference, err_msg=name, strict=True)


def assert_close(actual: Trained, expected: Trained, within: float) -> None:
    """Equal within a fraction of the largest absolute value of each tensor."""
    assert list(actual.history) == list(expected.history)
    for name, values in expected.history.items():
        np.testing.assert_allclose(actual.history[name], values, rtol=within, err_msg=name)
    for ours, theirs in ((actual.variables, expected.variables), (actual.slots, expected.slots)):
        for (name, value), reference in zip(ours.items(), theirs.values(), strict=True):
            scale = np.abs(reference).max(initial=0)
            np.testing.assert_allclose(value, reference, rtol=0, atol=within * scale, err_msg=name)
