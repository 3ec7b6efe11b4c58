"""Take the formula behind a tensor and evaluate it again with other inputs.

Two things need it. A variable that is assigned a function of its own value (a moving average, a constraint) is
updated on its parameter server against the value it has there by then (`writes`). And the logs of a step, which saw
only that step's share of each metric, are computed again from the running totals (`logs`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

# Cheap ops without state: evaluating them again elsewhere costs less than moving their result.
_CHEAP_OPS = """
    Abs Add AddV2 BiasAdd Cast ClipByValue Div DivNoNan Equal Exp ExpandDims FloorDiv FloorMod Greater GreaterEqual
    Identity Less LessEqual Log LogicalAnd LogicalNot LogicalOr Max Maximum Mean Min Minimum Mul Neg NotEqual Pow
    RealDiv Reciprocal Relu Reshape Rsqrt Select SelectV2 Sign Sqrt Square SquaredDifference Squeeze Sub Sum Xdivy
    ZerosLike OnesLike
"""
CHEAP_OPS = frozenset(_CHEAP_OPS.split())


def path(
    target: tf.Tensor, is_source: Callable[[tf.Tensor], bool], follows: Callable[[tf.Operation], bool]
) -> list[tf.Operation]:
    """The ops that lead from the sources to `target`.

    Args:
        target: The tensor at the end.
        is_source: Whether a tensor is one of the sources; the search ends there.
        follows: Whether the search may go on behind an op.

    Returns:
        The ops in an order in which they can be evaluated; empty if no source was reached, or if `target` is one.
    """
    order: list[tf.Operation] = []
    seen: dict[tf.Operation, bool] = {}
    stack: list[tuple[tf.Operation, bool]] = []
    if not is_source(target) and follows(target.op):
        stack.append((target.op, False))
    while stack:
        op, inputs_seen = stack.pop()
        if inputs_seen:
            seen[op] = any(is_source(tensor) or seen.get(tensor.op, False) for tensor in op.inputs)
            if seen[op]:
                order.append(op)
        elif op not in seen:
            seen[op] = False
            stack.append((op, True))
            stack.extend(
                (tensor.op, False)
                for tensor in op.inputs
                if not is_source(tensor) and tensor.op not in seen and follows(tensor.op)
            )
    return order


def side_inputs(ops: Sequence[tf.Operation], is_source: Callable[[tf.Tensor], bool]) -> list[tf.Tensor]:
    """What `ops` need besides the sources, each other and constants, each tensor once."""
    inside = set(ops)
    found: dict[Any, tf.Tensor] = {}
    for op in ops:
        for tensor in op.inputs:
            if not is_source(tensor) and tensor.op not in inside and tensor.op.type != "Const":
                found.setdefault(tensor.ref(), tensor)
    return list(found.values())


def replay(ops: Sequence[tf.Operation], substitutes: Mapping[Any, tf.Tensor]) -> dict[Any, tf.Tensor]:
    """Evaluate `ops` again in the current graph and on the current device.

    Args:
        ops: What `path` returned.
        substitutes: What stands for an input, by the input's `ref()`. An input without a substitute is used as it is;
            a constant is made anew, since sending one costs more than having it.

    Returns:
        `substitutes` and, besides, the new tensor for every output of `ops`, by the old one's `ref()`.
    """
    values = dict(substitutes)
    for op in ops:
        for tensor in op.inputs:
            if tensor.op.type == "Const" and tensor.ref() not in values:
                values[tensor.ref()] = _copy(tensor.op, []).outputs[0]
        inputs = [values.get(tensor.ref(), tensor) for tensor in op.inputs]
        values.update((old.ref(), new) for old, new in zip(op.outputs, _copy(op, inputs).outputs, strict=True))
    return values


def _copy(op: tf.Operation, inputs: list[tf.Tensor]) -> tf.Operation:
    # Attributes that start with an underscore speak of where the old op was.
    attributes = {key: value for key, value in op.node_def.attr.items() if not key.startswith("_")}
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(op.type, inputs, [output.dtype for output in op.outputs], attrs=attributes)


def added(new: tf.Tensor, is_old: Callable[[tf.Tensor], bool]) -> tf.Tensor | None:
    """The x of `new = old + x` or `new = old - (-x)`, where x itself is no cheap function of old.

    Args:
        new: A tensor of some graph.
        is_old: Whether a tensor is the old value.

    Returns:
        x, in whatever dtype it was added; None if `new` is anything else. Casts of the old and new value do not count.
    """
    new = _without_casts(new)
    if new.op.type in ("Add", "AddV2", "BiasAdd"):
        left, right = new.op.inputs
        candidates = [(left, right, False), (right, left, False)]
    elif new.op.type == "Sub":
        left, right = new.op.inputs
        candidates = [(left, right, True)]
    else:
        return None
    for old, x, negative in candidates:
        if is_old(_without_casts(old)):
            depends = is_old(x) or path(x, is_old, lambda op: op.type in CHEAP_OPS)
            return None if depends else (-x if negative else x)
    return None


def _without_casts(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type in ("Cast", "Identity"):
        tensor = tensor.op.inputs[0]
    return tensor
