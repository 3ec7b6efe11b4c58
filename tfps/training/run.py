"""One pass over some data: steps go out to the workers, results come back in order.

Batches enter; logs (or predictions) leave, one per execution and in the order of the executions. A step travels with
its batch, so a step that has to run again runs on the same data, no worker sees another's, and no port is opened for
it. Executions run ahead of the reports by a bounded number, and a slow worker does not hold up the others.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps._compat import ran_on, wait_until_ready
from tfps.errors import UnsupportedError
from tfps.training.seeds import SeedStates
from tfps.training.step import CompiledStep


@dataclasses.dataclass
class Part:
    """What one call on a worker does of an execution.

    Attributes:
        result: The remote result.
        steps: How many steps it is the result of. A call that draws its batches on the worker may turn out to have
            had fewer: after the report this says how many there were.
        seeds_after: For every step, the states in which it leaves the seed generators.
        worker: After the report, the index of the worker that it ran on.
    """

    result: Any
    steps: int
    seeds_after: Sequence[Any]
    worker: int | None = None


@dataclasses.dataclass
class Execution:
    """What Keras calls an execution: one step, or `steps_per_execution` of them, under way on the workers.

    Attributes:
        parts: Its parts, in the order of the steps.
    """

    parts: list[Part]

    def is_over(self, timeout: float = 0.0) -> bool:
        """Whether every part has finished, waiting up to `timeout` seconds for each."""
        return all(wait_until_ready(part.result, timeout) for part in self.parts)


class Run:
    """A pass of a compiled step over data.

    Args:
        step: The step.
        coordinator: The strategy's coordinator.
        steps_by_worker: Counts the finished steps of each worker.
    """

    def __init__(self, step: CompiledStep, coordinator: Any, steps_by_worker: Counter[int | None]):
        self._step = step
        self._coordinator = coordinator
        self._steps_by_worker = steps_by_worker
        self.look_up()

    def look_up(self) -> None:
        """Start from what metrics and seed generators hold now."""
        self._seeds = SeedStates(self._step.draws)
        self._reached: Any = None
        self._totals: list[tf.Tensor] = []
        if self._step.logs is not None:
            values = [tf.convert_to_tensor(variable) for variable in self._step.metric_variables]
            self._totals = self._step.logs.shares.pack(values)

    def start(self, batches: Sequence[Any]) -> Execution:
        """Send the steps of one execution out.

        Args:
            batches: One batch per step.

        Returns:
            The execution, under way.
        """
        return Execution([self._send(group) for group in self._groups(batches)])

    def _send(self, group: list[Any]) -> Part:
        seeds, seeds_after = self._take_seeds(len(group))
        if len(group) == 1:
            step, batch, seeds = self._step.one, group[0], seeds[0]
        else:
            step, batch = self._step.many, tf.nest.map_structure(_stack, *group)
        return Part(self._coordinator.schedule(step, args=(batch, seeds)), len(group), seeds_after)

    def start_drawing(self, iterators: Any, steps: int) -> Execution:
        """Send out one execution whose batches are on the workers.

        Args:
            iterators: An iterator per worker.
            steps: How many batches to train on, if there are as many.

        Returns:
            The execution, under way.
        """
        if self._step.logs is None:
            raise UnsupportedError(
                "predict must have data in an order, which pipelines on several workers do not have. Received: a "
                "function of the input context. Pass arrays or a tf.data.Dataset."
            )
        if self._step.drawing is None:
            raise UnsupportedError(
                "With data from a function of the input context, what a step logs must have a known shape. Received: "
                "logs that depend on the size of the batch. Log means or sums, or pass a tf.data.Dataset."
            )
        seeds, seeds_after = self._take_seeds(steps)
        result = self._coordinator.schedule(self._step.drawing, args=(iterators, seeds))
        return Execution([Part(result, steps, seeds_after)])

    def _take_seeds(self, steps: int) -> tuple[tf.Tensor, Sequence[Any]]:
        states, after = zip(*[self._seeds.take() for _ in range(steps)], strict=True)
        return tf.constant(np.stack(states), tf.int64), after

    def _groups(self, batches: Sequence[Any]) -> list[list[Any]]:
        """The batches in runs of equal shapes, which one call can take; a short last batch goes alone."""
        groups: list[list[Any]] = []
        last_shapes = None
        for batch in batches:
            shapes = [getattr(x, "shape", None) for x in tf.nest.flatten(batch)]
            if groups and self._step.many is not None and shapes == last_shapes:
                groups[-1].append(batch)
            else:
                groups.append([batch])
            last_shapes = shapes
        return groups

    def report(self, execution: Execution) -> Any:
        """Count a finished execution.

        Returns:
            Its logs, with the metrics as they stand after it, or None if there was no batch for it; for a prediction
            the outputs of its steps.
        """
        values, logs = [part.result.get() for part in execution.parts], None
        for part, value in zip(execution.parts, values, strict=True):
            part.worker = ran_on(part.result)
            if self._step.logs is not None:
                shares, extras, *drawn = value
                part.steps = int(drawn[0]) if drawn else part.steps
                if part.steps:
                    self._totals, logs = self._step.logs.add(self._totals, list(shares), list(extras))
            self._steps_by_worker[part.worker] += part.steps
            if part.steps:
                self._reached = part.seeds_after[part.steps - 1]
        return values if self._step.logs is None else logs

    def write_back(self) -> None:
        """Leave metrics and seed generators as if every step had run here."""
        if self._step.logs is not None:
            totals = self._step.logs.shares.unpack(self._totals)
            for variable, total in zip(self._step.metric_variables, totals, strict=True):
                variable.assign(total)
        if self._reached is not None:
            self._seeds.write_back(self._reached)
            self._reached = None


def _stack(*parts: Any) -> Any:
    return None if parts[0] is None else tf.stack(parts)
