"""Variables that were made outside `strategy.scope()` and belong to a model inside it.

Users write `compile(optimizer=Adam())` after the `with` block. The optimizer's variables then live on the coordinator,
where no worker can reach them, and the optimizer believes in another strategy. The Keras variables stay the objects
they are; what is behind them moves to the parameter servers, value and all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfps._compat import CachingVariable, held_by, hold, set_strategy


def adopt(model: keras.Model, strategy: Any) -> None:
    """Move what `model` has outside `strategy` under it.

    Args:
        model: A model made under the strategy's scope.
        strategy: The strategy.
    """
    for optimizer in optimizers_of(model):
        set_strategy(optimizer, strategy)
    for variable in _variables_of(model):
        outside = held_by(variable)
        if isinstance(outside, tf.Variable) and not isinstance(outside, CachingVariable):
            with strategy.scope():
                hold(variable, _copy(outside))


def _copy(outside: tf.Variable) -> tf.Variable:
    # As TensorFlow had it, not as Keras has it now: a layer that is frozen today may be trained tomorrow.
    return tf.Variable(
        outside.numpy(),
        trainable=outside.trainable,
        name=outside.name.split(":")[0],
        synchronization=outside.synchronization,
        aggregation=outside.aggregation,
    )


def _variables_of(model: keras.Model) -> Iterator[keras.Variable]:
    yield from model.variables
    for metric in model.metrics:
        yield from metric.variables
    for optimizer in optimizers_of(model):
        yield from optimizer.variables


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The optimizers that are attributes of `model` (a GAN has two), with those they wrap."""
    found = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    for optimizer in found:
        inner = getattr(optimizer, "inner_optimizer", None)
        if inner is not None:
            found.append(inner)
    return found
