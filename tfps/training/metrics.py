"""A step's share of each metric.

Inside a step a metric's variables start at zero, and what they hold at its end is the step's share, which travels back
to the coordinator with the step's result and is counted once, however often a worker had to run the step. That is
right for sums, which Keras's metrics are. A variable that is assigned anything but itself plus something, or that is
used where the share can not be followed (a branch, a loop, a nested `tf.function`), goes through the doors to its
parameter server instead, where the sum is atomic too.
"""

from __future__ import annotations

import tensorflow as tf

from tfps._compat import CachingVariable, read_natively
from tfps.training.expressions import added
from tfps.training.graphs import control_flow_between, current_graph
from tfps.training.trace import Trace


def read_share(trace: Trace, variable: CachingVariable) -> tf.Tensor:
    """What the step has added to `variable` so far, a tensor of its shape and dtype."""
    if control_flow_between(current_graph(), trace.graph) is None:
        trace.plan.on_ps.add(variable.ref())
        return read_natively(variable)
    if variable.ref() not in trace.shares:
        with trace.graph.as_default(), tf.control_dependencies(None):
            trace.shares[variable.ref()] = (variable, tf.zeros(variable.shape, variable.dtype))
    return trace.shares[variable.ref()][1]


def assign_share(trace: Trace, variable: CachingVariable, value: tf.Tensor) -> bool:
    """Take `value` as the step's new share.

    Returns:
        Whether it could be taken; if not, the plan has the variable and the step will be traced again.
    """
    share = read_share(trace, variable)
    if current_graph() is trace.graph and added(value, lambda tensor: tensor is share) is not None:
        trace.shares[variable.ref()] = (variable, value)
        return True
    trace.plan.on_ps.add(variable.ref())
    return False
