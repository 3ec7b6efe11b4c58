"""What a step reports: from its share of each metric and its own tensors to the logs that Keras's callbacks see.

Inside the step a metric's result is computed from that step's share alone. The coordinator, which has the running
totals, evaluates the same formula once more on those. So any log works: a metric's result under another name, a ratio
of two, or a plain loss. Most metric variables are sums; the formula of one that is not is evaluated here as well, step
after step, from what the variable held before.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps.training.expressions import path, replay, side_inputs
from tfps.training.packing import Packing
from tfps.training.trace import Share


class LogFormula:
    """How metrics and logs follow from a step, found in the step's graph.

    Args:
        logs: What the step returned, a structure of tensors.
        shares: What it made of each metric variable.

    Attributes:
        logs: As given.
        shares: The final value of each metric variable.
        extras: The other tensors of the step that metrics and logs need; they travel with the shares.
        is_sum: For each share, whether it is simply added to what the variable had.
        not_followed: The variables that depend on themselves in a way that can not be evaluated elsewhere.
    """

    def __init__(self, logs: Any, shares: Sequence[Share]):
        self.logs = logs
        self.shares = [share.value for share in shares]
        self._starts = [share.start for share in shares]
        starts, ends = _set_of(self._starts), _set_of(self.shares)
        self.is_sum = [
            share.summands is not None and not any(_formula(summand, starts) for summand in share.summands)
            for share in shares
        ]
        changes = [share.value for share, is_sum in zip(shares, self.is_sum, strict=True) if not is_sum]
        self._changes, extras = _formulas(changes, starts)
        self.not_followed = [
            share.variable.ref()
            for share in shares
            if any(share.value is extra for extra in extras) and _formula(share.value, starts)
        ]
        self._ops, more = _formulas(tf.nest.flatten(self.logs), ends)
        self.extras = list({tensor.ref(): tensor for tensor in [*extras, *more]}.values())

    def evaluate(
        self, totals: Sequence[tf.Tensor], shares: Sequence[tf.Tensor], extras: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], Any]:
        """What the metric variables, which had `totals`, hold after the step, and the logs, in the current graph."""
        needed = {old.ref(): new for old, new in zip(self.extras, extras, strict=True)}
        before = {old.ref(): new for old, new in zip(self._starts, totals, strict=True)}
        changed = replay(self._changes, {**needed, **before})
        totals = [
            total + share if is_sum else changed[end.ref()]
            for total, share, end, is_sum in zip(totals, shares, self.shares, self.is_sum, strict=True)
        ]
        after = {old.ref(): new for old, new in zip(self.shares, totals, strict=True)}
        values = replay(self._ops, {**needed, **after})
        return totals, tf.nest.map_structure(lambda leaf: values[leaf.ref()], self.logs)


class Logs:
    """Adds steps up on the coordinator and says what to log.

    Args:
        formula: How metrics and logs follow from a step.

    Attributes:
        shares: How the shares travel, and how running totals are kept.
        extras: How the extras travel.
        can_be_summed: Whether what steps return can be added up on the worker, several steps in one.
    """

    def __init__(self, formula: LogFormula):
        self.shares = Packing(formula.shares)
        self.extras = Packing(formula.extras)
        self.can_be_summed = self.shares.is_static() and self.extras.is_static() and all(formula.is_sum)
        self._formula = formula

    @functools.cached_property
    def _add(self) -> Any:
        @tf.function(autograph=False, jit_compile=False)
        def add(totals: list[tf.Tensor], shares: list[tf.Tensor], extras: list[tf.Tensor]) -> Any:
            unpack = self.shares.unpack
            new, logs = self._formula.evaluate(unpack(totals), unpack(shares), self.extras.unpack(extras))
            return self.shares.pack(new), logs

        return add.get_concrete_function(self.shares.specs(), self.shares.specs(), self.extras.specs())

    def add(self, totals: list[tf.Tensor], shares: list[tf.Tensor], extras: list[tf.Tensor]) -> Any:
        """Add a finished execution to the running totals.

        Args:
            totals: The running totals, packed.
            shares: What the execution adds to them, packed.
            extras: The last step's other tensors that metrics and logs need, packed.

        Returns:
            The new totals, packed, and the logs.
        """
        return self._add(totals, shares, extras)


def _formulas(targets: Sequence[tf.Tensor], sources: set[Any]) -> tuple[list[tf.Operation], list[tf.Tensor]]:
    """The ops that lead from sources to targets, and the tensors needed besides; a target may be one of these."""
    found: dict[tf.Operation, None] = {}
    needed: list[tf.Tensor] = []
    for target in targets:
        ops = _formula(target, sources)
        if any(_calls_functions(op) for op in ops):
            ops = []
        found.update(dict.fromkeys(ops))
        if not ops and target.ref() not in sources:
            needed.append(target)
    return list(found), [*needed, *side_inputs(list(found), lambda tensor: tensor.ref() in sources)]


def _formula(target: tf.Tensor, sources: set[Any]) -> list[tf.Operation]:
    return path(target, lambda tensor: tensor.ref() in sources, lambda op: op.type not in ("Placeholder", "Const"))


def _set_of(tensors: Sequence[tf.Tensor]) -> set[Any]:
    return {tensor.ref() for tensor in tensors}


def _calls_functions(op: tf.Operation) -> bool:
    return any(value.HasField("func") for value in op.node_def.attr.values())
