"""A step's share of each metric.

Inside a step a metric's variables start at zero. What was added to one by the step's end is the step's share, which
travels back to the coordinator with the step's result and is counted once, however often a worker had to run the step.
If a variable was assigned anything but itself plus something (a maximum, say), what the formula needs travels instead,
and the coordinator applies it step by step (see `logs`). A variable that is used where it can not be followed (a
branch, a loop, a nested `tf.function`) goes through the doors to its parameter server, where sums are atomic too.
"""

from __future__ import annotations

import tensorflow as tf

from tfps._compat import CachingVariable, num_workers, read_natively
from tfps.errors import UnsupportedError
from tfps.training.expressions import added
from tfps.training.graphs import control_flow_between, current_graph
from tfps.training.trace import Share, Trace


def read_share(trace: Trace, variable: CachingVariable) -> tf.Tensor:
    """What the step has made of `variable` so far, a tensor of its shape and dtype."""
    if control_flow_between(current_graph(), trace.graph) is None:
        trace.plan.on_ps.add(variable.ref())
        return read_natively(variable)
    if variable.ref() not in trace.shares:
        with trace.graph.as_default(), tf.control_dependencies(None):
            start = tf.zeros(variable.shape, variable.dtype)
        trace.shares[variable.ref()] = Share(variable, start, start, [])
    return trace.shares[variable.ref()].value


def assign_share(trace: Trace, variable: CachingVariable, value: tf.Tensor) -> bool:
    """Take `value` as what the step makes of `variable`.

    Returns:
        Whether it could be taken; if not, the plan has the variable and the step will be traced again.
    """
    old = read_share(trace, variable)
    if current_graph() is not trace.graph:
        trace.plan.on_ps.add(variable.ref())
        return False
    share = trace.shares[variable.ref()]
    summand = added(value, lambda tensor: tensor is old)
    share.value = value
    share.summands = None if summand is None or share.summands is None else [*share.summands, summand]
    return True


def check_is_sum(variable: CachingVariable) -> None:
    """Refuse a metric state that many workers would overwrite for one another.

    Args:
        variable: A metric's variable on a parameter server that is about to be assigned something else than a sum.

    Raises:
        UnsupportedError: There are several workers.
    """
    workers = num_workers(tf.distribute.get_strategy())
    if workers > 1:
        raise UnsupportedError(
            "Inside a loop, a branch or a tf.function of its own, a metric's state must only be added to. Received: "
            f"{variable.name!r}, assigned something else, with {workers} workers. Assign it outside, from the values "
            "that the loop or branch returns."
        )
