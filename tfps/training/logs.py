"""What a step reports: from its share of each metric and its own tensors to the logs that Keras's callbacks see.

Inside the step a metric's result is computed from that step's share alone. The coordinator, which has the running
totals, evaluates the same formula once more on those. So any log works: a metric's result under another name, a ratio
of two, or a plain loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps.training.expressions import path, replay, side_inputs
from tfps.training.packing import Packing


class LogFormula:
    """How the logs of a step follow from its shares, found in the step's graph.

    Args:
        logs: What the step returned, a structure of tensors.
        shares: The step's final share of each metric variable.

    Attributes:
        logs: As given.
        shares: As given.
        extras: The other tensors of the step that the logs need; they travel with the shares.
        ops: What leads from shares and extras to the logs.
    """

    def __init__(self, logs: Any, shares: Sequence[tf.Tensor]):
        self.logs = logs
        self.shares = list(shares)
        known = {share.ref() for share in self.shares}

        def is_share(tensor: tf.Tensor) -> bool:
            return tensor.ref() in known

        leaves = tf.nest.flatten(self.logs)
        found: dict[tf.Operation, None] = {}
        extras: dict[Any, tf.Tensor] = {}
        for leaf in leaves:
            ops = path(leaf, is_share, lambda op: op.type not in ("Placeholder", "Const"))
            if any(_calls_functions(op) for op in ops):
                ops = []
            found.update(dict.fromkeys(ops))
            if not ops and not is_share(leaf):
                extras.setdefault(leaf.ref(), leaf)
        self.ops = list(found)
        for tensor in side_inputs(self.ops, is_share):
            extras.setdefault(tensor.ref(), tensor)
        self.extras = list(extras.values())

    def evaluate(self, totals: Sequence[tf.Tensor], extras: Sequence[tf.Tensor]) -> Any:
        """The logs for other values of the shares, with ops in the current graph."""
        values = {old.ref(): new for old, new in zip(self.shares, totals, strict=True)}
        values.update((old.ref(), new) for old, new in zip(self.extras, extras, strict=True))
        values = replay(self.ops, values)
        return tf.nest.map_structure(lambda leaf: values[leaf.ref()], self.logs)


class Logs:
    """Adds steps up on the coordinator and says what to log.

    Args:
        formula: How logs follow from shares.

    Attributes:
        shares: How the shares travel, and how running totals are kept.
        extras: How the extras travel.
    """

    def __init__(self, formula: LogFormula):
        self.shares = Packing(formula.shares)
        self.extras = Packing(formula.extras)

        @tf.function(autograph=False, jit_compile=False)
        def add(totals: list[tf.Tensor], shares: list[tf.Tensor], extras: list[tf.Tensor]) -> Any:
            totals = [total + share for total, share in zip(totals, shares, strict=True)]
            return totals, formula.evaluate(self.shares.unpack(totals), self.extras.unpack(extras))

        self._add = add

    def add(self, totals: list[tf.Tensor], shares: list[tf.Tensor], extras: list[tf.Tensor]) -> Any:
        """Add a finished execution to the running totals.

        Args:
            totals: The running totals, packed.
            shares: What the execution adds to them, packed.
            extras: The last step's other tensors that the logs need, packed.

        Returns:
            The new totals, packed, and the logs.
        """
        return self._add(totals, shares, extras)


def _calls_functions(op: tf.Operation) -> bool:
    return any(value.HasField("func") for value in op.node_def.attr.values())
