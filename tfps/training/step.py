"""A model's step as a function that a worker runs.

A step method of Keras (`train_step`, `test_step`, `predict_step`) enters; what leaves is a concrete function of the
batch and the seeds. It returns the step's share of each metric and whatever its logs need, and writes nothing but
what training means to write. Several steps in one call are a loop on the worker around the same function.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfps._compat import CachingVariable
from tfps.training.datasets import as_tensor
from tfps.training.logs import LogFormula, Logs
from tfps.training.trace import Plan, Trace, tracing

MOST_TRACINGS = 8


@dataclasses.dataclass
class CompiledStep:
    """A traced step.

    Attributes:
        one: Takes a batch and seeds of shape (generators, 2); returns `(shares, extras)`, packed, or the outputs
            themselves for a prediction.
        spec: The batch's structure of `tf.TypeSpec`s.
        metric_variables: The variables that the shares belong to, in order.
        draws: Each seed generator and, for every draw of a step, whether it is ordered.
        logs: Turns running totals and a step's extras into its logs; None for a prediction.
    """

    one: Any
    spec: Any
    metric_variables: list[CachingVariable]
    draws: list[tuple[keras.random.SeedGenerator, list[bool]]]
    logs: Logs | None

    @functools.cached_property
    def many(self) -> Any:
        """`one` for a stack of batches and seeds of shape (steps, generators, 2); None where they do not stack."""
        stackable = all(isinstance(s, tf.TensorSpec) for s in tf.nest.flatten(self.spec) if s is not None)
        return _repeated(self.one, self.spec) if stackable and self._can_be_summed() else None

    @functools.cached_property
    def drawing(self) -> Any:
        """The same for an iterator of batches; returns besides how many batches there were, if fewer than seeds.

        None where the results of several steps can not be summed.
        """
        return _drawing(self.one, self.spec) if self._can_be_summed() else None

    def _can_be_summed(self) -> bool:
        return self.logs is not None and self.logs.can_be_summed


def compile_step(strategy: Any, method: Callable[[Any], Any], spec: Any, predicts: bool = False) -> CompiledStep:
    """Trace a step.

    Args:
        strategy: The parameter-server strategy whose workers will run it.
        method: The step method of a model; takes a batch.
        spec: The batch's structure of `tf.TypeSpec`s.
        predicts: Whether the method's result is the output, not logs.

    Returns:
        The traced step.
    """
    plan = Plan()
    for _ in range(MOST_TRACINGS):
        known = plan.knows()
        compiled = _trace(strategy, method, spec, plan, predicts)
        if plan.knows() == known:
            return compiled
    raise AssertionError("tracing the step again keeps teaching something new")


def _trace(strategy: Any, method: Callable[[Any], Any], spec: Any, plan: Plan, predicts: bool) -> CompiledStep:
    traces: list[Trace] = []
    logs: list[Logs] = []

    @tf.function(autograph=False, jit_compile=False)
    def one(batch: Any, seeds: tf.Tensor) -> Any:
        trace = Trace(plan, tf.compat.v1.get_default_graph(), seeds)
        traces.append(trace)
        one_replica = tf.distribute.ReplicaContext(strategy, 0)
        with strategy.scope(), one_replica, tf.variable_creator_scope(lifted), tracing(trace):
            result = tf.nest.map_structure(as_tensor, method(batch))
        trace.learn()
        if predicts:
            return result
        formula = LogFormula(result, list(trace.shares.values()))
        plan.on_ps.update(formula.not_followed)
        logs.append(Logs(formula))
        return logs[-1].shares.pack(formula.shares), logs[-1].extras.pack(formula.extras)

    seeds = tf.TensorSpec([None, 2], tf.int64)
    concrete = one.get_concrete_function(spec, seeds)
    trace = traces[-1]
    return CompiledStep(
        one=concrete,
        spec=spec,
        metric_variables=[share.variable for share in trace.shares.values()],
        draws=list(trace.draws.values()),
        logs=None if predicts else logs[-1],
    )


def _repeated(one: Any, spec: Any) -> Any:
    """`one` in a loop over a stack of batches."""

    @tf.function(autograph=False, jit_compile=False)
    def many(batches: Any, seeds: tf.Tensor) -> Any:
        def turn(step: tf.Tensor, sums: list[tf.Tensor], extras: list[tf.Tensor]) -> Any:
            del extras  # the last step's are the ones that are logged
            shares, new_extras = one(_each(lambda x: x[step], batches), seeds[step])
            return step + 1, _added(sums, shares), new_extras

        steps = tf.shape(seeds)[0]
        _, sums, extras = tf.while_loop(lambda step, *_: step < steps, turn, (0, *_zeros(one)), parallel_iterations=1)
        return sums, extras

    stacked = _each(lambda s: tf.TensorSpec([None, *s.shape], s.dtype), spec)
    return many.get_concrete_function(stacked, tf.TensorSpec([None, None, 2], tf.int64))


def _drawing(one: Any, spec: Any) -> Any:
    """`one` in a loop over what an iterator on the worker has next."""

    @tf.function(autograph=False, jit_compile=False)
    def drawing(iterator: Any, seeds: tf.Tensor) -> Any:
        def turn(step: tf.Tensor, sums: list[tf.Tensor], extras: list[tf.Tensor], more: tf.Tensor) -> Any:
            del more
            batch = iterator.get_next_as_optional()

            def train() -> Any:
                shares, new_extras = one(batch.get_value(), seeds[step])
                return step + 1, _added(sums, shares), new_extras, True

            return tf.cond(batch.has_value(), train, lambda: (step, sums, extras, False))

        steps = tf.shape(seeds)[0]
        step, sums, extras, _ = tf.while_loop(
            lambda step, _, __, more: (step < steps) & more, turn, (0, *_zeros(one), True), parallel_iterations=1
        )
        return sums, extras, step

    return drawing.get_concrete_function(tf.data.IteratorSpec(spec), tf.TensorSpec([None, None, 2], tf.int64))


def _added(sums: list[tf.Tensor], shares: list[tf.Tensor]) -> list[tf.Tensor]:
    return [total + share for total, share in zip(sums, shares, strict=True)]


def _zeros(one: Any) -> Any:
    return tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), list(map(list, one.structured_outputs)))


def _each(change: Callable[[Any], Any], batch: Any) -> Any:
    return tf.nest.map_structure(lambda x: None if x is None else change(x), batch)


def lifted(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """A variable creator that makes a variable outside the trace it is asked for in.

    A custom `train_step` may build an optimizer on first use; its variables belong on the parameter servers, once.
    """

    def make(_: Any = None) -> Any:
        with tf.init_scope():
            return next_creator(**kwargs)

    replica = tf.distribute.get_replica_context()
    return make() if replica is None else replica.merge_call(make)
