"""The one door through which variables on a parameter server are written from a graph.

Many workers write at once, so a value that was computed from an old read must not overwrite what the others did
meanwhile. A variable that is assigned itself plus something is added to, atomically. One that is assigned another
function of itself (a moving average, a constraint, an average of weights) is assigned that function of its value on
the parameter server, evaluated there. Any other assignment is what it says: the last writer wins.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfps._compat import CachingVariable, EagerTensor, read_natively
from tfps.cluster.current import check_variable_usable
from tfps.training import metrics
from tfps.training.expressions import CHEAP_OPS, added, path, replay
from tfps.training.graphs import device_of_read, is_read_of
from tfps.training.trace import active_trace, is_metric_state
from tfps.training.updates import is_beside_update

MOST_OPS_MOVED = 64


def assign(variable: CachingVariable, value: Any, **options: Any) -> Any:
    """Write `value` to a variable on a parameter server.

    Args:
        variable: Any variable made under a parameter-server strategy.
        value: A tensor, or what converts to one, of the variable's shape and dtype.
        **options: As `tf.Variable.assign` takes them.

    Returns:
        What `tf.Variable.assign` returns.
    """
    target = variable.get()
    if tf.executing_eagerly():
        check_variable_usable(variable)
    if tf.executing_eagerly() or isinstance(value, tf.IndexedSlices):
        return target.assign(value, **options)
    value = tf.convert_to_tensor(value, dtype=variable.dtype)
    if isinstance(value, EagerTensor):
        return target.assign(value, **options)
    trace = active_trace()
    if trace is not None and trace.shares_of(variable) and metrics.assign_share(trace, variable, value):
        return value

    def is_own(tensor: tf.Tensor) -> bool:
        return is_read_of(tensor, variable)

    summand = added(value, is_own)
    if summand is not None:
        with tf.device(variable.device):
            constant = tf.get_static_value(summand)
            summand = summand if constant is None else tf.constant(constant)  # rather than sending it
            return target.assign_add(tf.cast(summand, variable.dtype), **options)
    if trace is not None and is_metric_state(variable):
        metrics.check_is_sum(variable)
    if is_beside_update(variable):  # computed beside the variable already
        return target.assign(value, **options)
    return target.assign(_evaluated_beside(variable, value), **options)


def _evaluated_beside(variable: CachingVariable, value: tf.Tensor) -> tf.Tensor:
    """`value`, evaluated on the variable's server if it is a cheap function of the variable, else as it is."""

    def is_there(tensor: tf.Tensor) -> bool:
        return device_of_read(tensor) == variable.device

    def is_small(op: tf.Operation) -> bool:
        # What is larger than the variable, or as long as the batch, is the forward pass: it stays on the worker.
        sizes = [output.shape.num_elements() for output in op.outputs]
        return op.type in CHEAP_OPS and all(size is not None and size <= most for size in sizes)

    most = max(variable.shape.num_elements(), 1)
    ops = path(value, is_there, is_small)
    reads = {t.ref(): t for op in ops for t in op.inputs if is_read_of(t, variable)}
    if not reads or len(ops) > MOST_OPS_MOVED:
        return value
    with tf.device(variable.device):
        return replay(ops, dict.fromkeys(reads, read_natively(variable)))[value.ref()]
