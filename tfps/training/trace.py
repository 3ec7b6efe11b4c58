"""The step that is being traced on this thread, and what is learnt from tracing it.

Some facts about a step show only once it has been traced: that a loop writes a variable it also reads, or that a
branch updates a metric. They are kept in a `Plan`, and the step is traced again by it until nothing new is learnt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps._compat import CachingVariable, WhileBodyFuncGraph
from tfps.training.graphs import count_writes


@dataclasses.dataclass
class Plan:
    """What earlier traces of a step taught.

    Attributes:
        reread: Variables that some loop of the step writes: inside loops they are read anew each time.
        on_ps: Metric variables that are used inside branches or functions of their own, where what happens to them
            can not be followed: they are read and written on their parameter server like any other variable.
    """

    reread: set[Any] = dataclasses.field(default_factory=set)
    on_ps: set[Any] = dataclasses.field(default_factory=set)

    def knows(self) -> int:
        """How much it holds."""
        return len(self.reread) + len(self.on_ps)


@dataclasses.dataclass
class Share:
    """What a step makes of a metric variable.

    Attributes:
        variable: The variable.
        start: The tensor that stands for its value at the step's start: zeros.
        value: Its value so far.
        summands: What was added to it; None once it was assigned anything but itself plus something.
    """

    variable: CachingVariable
    start: tf.Tensor
    value: tf.Tensor
    summands: list[tf.Tensor] | None


class Trace:
    """One tracing of a step.

    Args:
        plan: What earlier tracings taught; this one adds to it.
        graph: The step's own graph.
        seeds: What the step's random seeds start from, int64, shape (generators, 2).
    """

    def __init__(self, plan: Plan, graph: Any, seeds: tf.Tensor):
        self.plan = plan
        self.graph = graph
        self.seeds = seeds
        self.reads: dict[Any, tuple[tf.Tensor, int]] = {}
        self.shares: dict[Any, Share] = {}
        self.draws: dict[Any, tuple[Any, list[bool]]] = {}
        self._on_ps = frozenset(plan.on_ps)
        self._read_in_loops: list[tuple[Any, CachingVariable]] = []

    def shares_of(self, variable: CachingVariable) -> bool:
        """Whether the step keeps its own share of `variable` (a metric's state) instead of going to the PS."""
        return is_metric_state(variable) and variable.ref() not in self._on_ps

    def served(self, variable: CachingVariable, control_flow: list[Any]) -> None:
        """Note that a value read outside these loops and branches was handed out inside them."""
        self._read_in_loops += [(g, variable) for g in control_flow if isinstance(g, WhileBodyFuncGraph)]

    def learn(self) -> None:
        """Put into the plan what shows only now: a later turn of a loop must see what an earlier one wrote."""
        self.plan.reread.update(v.ref() for g, v in self._read_in_loops if count_writes(g, v))


def is_metric_state(variable: CachingVariable) -> bool:
    """Whether Keras declared `variable` as a metric's: summed over replicas when read."""
    return (
        variable.synchronization == tf.VariableSynchronization.ON_READ
        and variable.aggregation == tf.VariableAggregation.SUM
    )


_thread = threading.local()


def active_trace() -> Trace | None:
    """The step being traced on this thread, if ops made now belong to its graph or to one inside it."""
    return None if tf.executing_eagerly() else getattr(_thread, "trace", None)


@contextlib.contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    """Make `trace` the active one."""
    _thread.trace = trace
    try:
        yield
    finally:
        _thread.trace = None
