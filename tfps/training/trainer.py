"""Keras's trainer on a parameter-server strategy: which of its methods differ there, and how.

Keras's own `fit`, `evaluate` and `predict` stay the loops. Replaced, and only for models made under such a strategy,
are the epoch iterator and the functions the loops call on what it yields.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfps._compat import concatenate, held_by, symbolic_build, was_made_in_a_scope
from tfps.cluster.current import check_usable
from tfps.errors import UnsupportedError
from tfps.training.adopt import adopt
from tfps.training.datasets import as_tensor
from tfps.training.epochs import LOOK_AGAIN_SECONDS, ClusterEpochIterator, Turn
from tfps.training.run import Run
from tfps.training.step import CompiledStep, compile_step


class ClusterFunction:
    """What Keras calls `train_function`, `test_function` or `predict_function`.

    Args:
        model: The model.
        method: Its step method.
        predicts: Whether the method returns outputs, not logs.

    Attributes:
        steps_by_worker: How many steps each worker has finished, by its index.
        in_rounds: Whether callbacks are to find no step under way.
    """

    def __init__(self, model: keras.Model, method: Callable[[Any], Any], predicts: bool = False):
        self._strategy = model.distribute_strategy
        self._method = method
        self._predicts = predicts
        self.in_rounds = False
        self.steps_by_worker: Counter[int | None] = Counter()
        self._compiled: dict[Any, CompiledStep] = {}

    def __call__(self, turn: Any) -> Any:
        """Run an execution.

        Args:
            turn: A `Turn` of an epoch, in a list where Keras's `predict` calls; or an iterable of batches, where the
                `*_on_batch` methods do.

        Returns:
            Its logs, or the outputs.
        """
        if isinstance(turn, list) and isinstance(turn[0], Turn):
            turn = turn[0]
        reported = turn.result(self._run, self.in_rounds) if isinstance(turn, Turn) else self._on_batches(list(turn))
        return concatenate(reported) if self._predicts else reported

    def _run(self, spec: Any, coordinator: Any) -> Run:
        key = (tuple(map(str, tf.nest.flatten(spec))), str(tf.nest.map_structure(lambda _: 0, spec)))
        if key not in self._compiled:
            self._compiled[key] = compile_step(self._strategy, self._method, spec, self._predicts)
        return Run(self._compiled[key], coordinator, self.steps_by_worker)

    def _on_batches(self, batches: list[Any]) -> Any:
        batches = [tf.nest.map_structure(as_tensor, batch) for batch in batches]
        spec = tf.nest.map_structure(lambda x: None if x is None else tf.type_spec_from_value(x), batches[0])
        coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        run = self._run(spec, coordinator)
        execution = run.start(batches)
        while not execution.is_over(LOOK_AGAIN_SECONDS):
            coordinator.done()  # raises what a step raised
        reported = run.report(execution)
        run.write_back()
        return reported


def prepare(model: keras.Model) -> None:
    """Make sure `model` can be run by its strategy's workers, whatever else was made where."""
    if not was_made_in_a_scope(model):
        raise UnsupportedError(
            "A model must be made inside strategy.scope() for the strategy to train it. Received: one that was made "
            "outside and is used inside. Make it in the scope, or use it outside."
        )
    check_usable(model.distribute_strategy)
    held = [held_by(variable) for variable in model.variables]
    if not all(isinstance(variable, tf.Variable) for variable in held if variable is not None):
        raise UnsupportedError(
            "A model's variables must be whole to be trained. Received: variables that a variable_partitioner has "
            "split. Make the strategy without one, or with one that leaves variables of this size whole."
        )
    if model.run_eagerly:
        raise UnsupportedError(
            "A model under a parameter-server strategy must run as a graph, on workers in other processes. "
            "Received: run_eagerly=True. Debug the model without the strategy, or compile it without run_eagerly."
        )
    adopt(model, model.distribute_strategy)


def build_symbolically(model: keras.Model, epoch: ClusterEpochIterator | None, batch: Any) -> None:
    """Build what the first batch would build (model, metrics, optimizer), from its shapes alone.

    Args:
        model: The model.
        epoch: The epoch iterator whose batches have the shapes, or None.
        batch: A batch that has them, if there is no epoch.
    """
    prepare(model)
    # A model without `call` (a GAN with a `train_step`) can not be built this way; tracing its step will build it.
    with model.distribute_strategy.scope(), contextlib.suppress(RuntimeError):
        symbolic_build(model, batch if epoch is None else epoch.element_spec)
    adopt(model, model.distribute_strategy)
