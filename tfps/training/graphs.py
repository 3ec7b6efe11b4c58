"""Questions about graphs under construction: what surrounds them, what they capture, what may write a variable.

The doors (`reads`, `writes`) decide by looking at the graph itself rather than by watching every way to write a
variable: whatever wrote it, an optimizer, a raw op or a branch, consumes its handle.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfps._compat import ControlFlowFuncGraph, EagerTensor

READING_OPS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"})
READ_ONLY_INPUTS = "_read_only_resource_inputs"  # TensorFlow's note on calls, loops and branches


def current_graph() -> Any:
    """The graph that new ops go into."""
    return tf.compat.v1.get_default_graph()


def control_flow_between(graph: Any, root: Any) -> list[Any] | None:
    """The loops and branches one has to leave to get from `graph` to `root`, innermost first.

    Returns:
        The graphs of the loops and branches, empty if `graph` is `root`; None if something else lies between, such as
        a `tf.function` with a life of its own.
    """
    between = []
    while graph is not root:
        if not isinstance(graph, ControlFlowFuncGraph):
            return None
        between.append(graph)
        graph = graph.outer_graph
    return between


def captured_as(graph: Any, tensor: Any) -> tf.Tensor | None:
    """The tensor that stands for the outer `tensor` inside `graph`, or None if `graph` does not use it."""
    return next((inner for outer, inner in graph.captures if outer is tensor), None)


def outermost(tensor: Any) -> Any:
    """What `tensor` stands for with every capture undone: a tensor of an outer graph, or an eager value."""
    while not isinstance(tensor, EagerTensor) and tensor.op.type == "Placeholder":
        outer = next((outer for outer, inner in tensor.graph.captures if inner is tensor), None)
        if outer is None:
            break
        tensor = outer
    return tensor


def is_read_of(tensor: tf.Tensor, variable: Any) -> bool:
    """Whether `tensor` is the value of `variable`, read in this graph or in one around it."""
    return _handle_read(tensor) is variable.handle


def device_of_read(tensor: tf.Tensor) -> str | None:
    """The device of the variable that `tensor` was read from, or None if it is no variable's value."""
    handle = _handle_read(tensor)
    return None if handle is None else handle.device


def _handle_read(tensor: tf.Tensor) -> Any:
    source = outermost(tensor)
    if isinstance(source, EagerTensor) or source.op.type != "ReadVariableOp":
        return None
    return outermost(source.op.inputs[0])


def count_writes(graph: Any, variable: Any) -> int:
    """How many ops of `graph` may write `variable`: its consumers that are not known to read only."""
    if isinstance(graph, ControlFlowFuncGraph):
        handle = captured_as(graph, variable.handle)
    else:
        handle = graph.capture(variable.handle)  # the step's own graph is about to read it anyway
    return 0 if handle is None else sum(_may_write(op, handle) for op in handle.consumers())


def _may_write(op: tf.Operation, handle: tf.Tensor) -> bool:
    if op.type in READING_OPS:
        return False
    try:
        read_only = op.get_attr(READ_ONLY_INPUTS)
    except ValueError:
        return True
    return any(tensor is handle and index not in read_only for index, tensor in enumerate(op.inputs))
