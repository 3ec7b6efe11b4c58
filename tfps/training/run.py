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
from tfps.training.seeds import SeedStates
from tfps.training.step import CompiledStep


@dataclasses.dataclass
class Execution:
    """What Keras calls an execution: one step, or `steps_per_execution` of them, under way on the workers.

    Attributes:
        results: The remote results, in the order of the steps.
        steps: How many steps each of them is the result of.
    """

    results: list[Any]
    steps: list[int]

    def is_over(self, timeout: float = 0.0) -> bool:
        """Whether every part has finished, waiting up to `timeout` seconds for each."""
        return all(wait_until_ready(result, timeout) for result in self.results)


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
        self._seeds = SeedStates(step.draws)
        self._totals: list[tf.Tensor] = []
        if step.logs is not None:
            self._totals = step.logs.shares.pack([tf.convert_to_tensor(v) for v in step.metric_variables])

    def start(self, batches: Sequence[Any]) -> Execution:
        """Send the steps of one execution out.

        Args:
            batches: One batch per step.

        Returns:
            The execution, under way.
        """
        groups = self._groups(batches)
        results = []
        for group in groups:
            seeds = np.stack([self._seeds.take() for _ in group])
            if len(group) == 1:
                step, batch, seeds = self._step.one, group[0], seeds[0]
            else:
                step, batch = self._step.many, tf.nest.map_structure(_stack, *group)
            results.append(self._coordinator.schedule(step, args=(batch, tf.constant(seeds, tf.int64))))
        return Execution(results, [len(group) for group in groups])

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
            Its logs, with the metrics as they stand after it; for a prediction the outputs, concatenated.
        """
        values = [result.get() for result in execution.results]
        for result, steps in zip(execution.results, execution.steps, strict=True):
            self._steps_by_worker[ran_on(result)] += steps
        if self._step.logs is None:
            return values
        logs = None
        for shares, extras in values:
            self._totals, logs = self._step.logs.add(self._totals, list(shares), list(extras))
        return logs

    def write_back(self) -> None:
        """Leave metrics and seed generators as if every step had run here."""
        if self._step.logs is not None:
            totals = self._step.logs.shares.unpack(self._totals)
            for variable, total in zip(self._step.metric_variables, totals, strict=True):
                variable.assign(total)
        self._seeds.write_back()


def _stack(*parts: Any) -> Any:
    return None if parts[0] is None else tf.stack(parts)
