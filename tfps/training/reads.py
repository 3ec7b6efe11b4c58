"""The one door through which a step reads variables.

A variable enters, its value leaves: read once per step, in the step's own graph, recorded on every tape as a read of
that variable, and handed out again, the very same tensor, inside the step's loops and branches. Where that would be
wrong the door steps aside and reads natively: in a nested `tf.function`, which outlives the step's graph; in a loop
that writes the variable; and in an optimizer's update, which runs beside the variable and wants its newest value.
"""

from __future__ import annotations

import tensorflow as tf

from tfps._compat import CachingVariable, WhileBodyFuncGraph, read_natively, record_read
from tfps.cluster.current import check_variable_usable
from tfps.training import metrics
from tfps.training.graphs import control_flow_between, count_writes, current_graph
from tfps.training.trace import Trace, active_trace
from tfps.training.updates import is_beside_update, read_on_arrival


def read(variable: CachingVariable) -> tf.Tensor:
    """The value of a variable on a parameter server, as the step being traced sees it.

    Args:
        variable: Any variable made under a parameter-server strategy.

    Returns:
        A tensor of the variable's shape and dtype.
    """
    if tf.executing_eagerly():
        check_variable_usable(variable)
        return read_natively(variable)
    if is_beside_update(variable):
        return read_on_arrival(variable)
    trace = active_trace()
    if trace is None:
        return read_natively(variable)
    if trace.shares_of(variable):
        return metrics.read_share(trace, variable)
    between = control_flow_between(current_graph(), trace.graph)
    if between is None or _written_inside(trace, variable, between):
        with tf.device(None):
            return read_natively(variable)
    trace.served(variable, between)
    return _read_once(trace, variable)


def _written_inside(trace: Trace, variable: CachingVariable, between: list[tf.Graph]) -> bool:
    if any(count_writes(graph, variable) for graph in between):
        return True
    in_loop = any(isinstance(graph, WhileBodyFuncGraph) for graph in between)
    return in_loop and variable.ref() in trace.plan.reread


def _read_once(trace: Trace, variable: CachingVariable) -> tf.Tensor:
    writes = count_writes(trace.graph, variable)
    value, writes_then = trace.reads.get(variable.ref(), (None, 0))
    if value is not None and writes == writes_then:
        record_read(variable.get(), value)
        return value
    # A read must not wait for what the caller happens to be building: a gradient, a colocation, a device.
    with trace.graph.as_default(), tf.control_dependencies(None), tf.device(None):
        value = read_natively(variable)
    trace.reads[variable.ref()] = (value, writes)
    return value
