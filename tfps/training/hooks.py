"""Every change that importing tfps makes to Keras and TensorFlow, in one place.

Each one does something only for a variable, strategy or model made under a parameter-server strategy; whatever was not
made under one goes on exactly as if tfps was not there.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfps._compat import (
    CachingVariable,
    ControlFlowFuncGraph,
    ParameterServerStrategyV2,
    ParameterServerStrategyV2Extended,
    TensorFlowTrainer,
    TFEpochIterator,
    held_dtype,
    hold,
    keras_trainer,
    warn_unless_scheduled,
)
from tfps.cluster.current import check_variable_usable, connected
from tfps.errors import ClusterClosedError, UnsupportedError
from tfps.training import reads, seeds, updates, writes
from tfps.training.epochs import ClusterEpochIterator
from tfps.training.initial_value import InitialValue
from tfps.training.pipelines import PipelineEpochIterator
from tfps.training.trainer import ClusterFunction, build_symbolically, prepare
from tfps.training.watching import watches_batches


def install() -> None:
    """Put the hooks in place; once."""
    _strategies()
    _variables()
    _updates()
    _seeds()
    _trainer()
    _callbacks()
    _tables()


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def _strategies() -> None:
    """A strategy made without tfps connects this process too, and says so."""

    def announced(make: Callable[..., Any]) -> Any:
        def connect(self: Any, cluster_resolver: Any, variable_partitioner: Any = None) -> None:
            make(self, cluster_resolver, variable_partitioner)
            connected(self, cluster_resolver.cluster_spec())

        return connect

    _replace(tf.distribute.ParameterServerStrategy, "__init__", announced)


def _variables() -> None:
    """Every variable under a parameter-server strategy is a `CachingVariable`: its reads and writes take the doors."""

    def remembering_strategy(make: Callable[..., Any]) -> Any:
        def start(self: Any, v: Any) -> None:
            make(self, v)
            self.made_on = v.device
            strategy = tf.distribute.get_strategy()
            self.made_under = weakref.ref(strategy) if isinstance(strategy, ParameterServerStrategyV2) else None

        return start

    def usable_only(serialize: Callable[..., Any]) -> Any:
        def checked(self: Any) -> Any:
            check_variable_usable(self)
            return serialize(self)

        return checked

    def shown(represent: Callable[..., Any]) -> Any:
        def described(self: Any) -> str:
            try:
                check_variable_usable(self)
            except ClusterClosedError as error:
                return f"<tf.Variable {self.name!r} shape={self.shape} dtype={self.dtype.name}: {error}>"
            return represent(self)

        return described

    _replace(CachingVariable, "__init__", remembering_strategy)
    _replace(CachingVariable, "__repr__", shown)
    _replace(CachingVariable, "__str__", shown)
    # TensorFlow would ask a handle, which it can not do any more once this process has connected to another cluster.
    device = CachingVariable.device.fget
    CachingVariable.device = property(lambda self: getattr(self, "made_on", None) or device(self))
    _replace(CachingVariable, "value", lambda _: reads.read)
    _replace(CachingVariable, "read_value", lambda _: lambda variable: tf.identity(reads.read(variable)))
    _replace(CachingVariable, "_dense_var_to_tensor", lambda _: _to_tensor)
    _replace(CachingVariable, "assign", lambda _: writes.assign)
    _replace(CachingVariable, "_serialize_to_tensors", usable_only)

    def with_shape(initialize: Callable[..., Any]) -> Any:
        def start(self: Any, initializer: Any) -> None:
            if isinstance(tf.distribute.get_strategy(), ParameterServerStrategyV2):
                hold(self, InitialValue(initializer, self.shape, held_dtype(self)))
            else:
                initialize(self, initializer)

        return start

    _replace(keras.Variable, "_initialize_with_initializer", with_shape)


def _to_tensor(variable: Any, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> tf.Tensor:
    del name, as_ref
    if dtype is not None and not dtype.is_compatible_with(variable.dtype):
        raise ValueError(f"A variable converts to its own dtype, {variable.dtype.name}. Received: {dtype.name}")
    return reads.read(variable)


def _updates() -> None:
    """Updates start when their gradient has arrived; one replica has nothing to merge or to reduce, and no thread."""

    def late(update: Callable[..., Any]) -> Any:
        def start_on_arrival(self: Any, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
            if tf.executing_eagerly() or not isinstance(var, CachingVariable):
                return update(self, var, fn, args, kwargs, group)
            with updates.after_arrival(var, (args, kwargs)) as (args, kwargs):
                return update(self, var, fn, args, kwargs, group)

        return start_on_arrival

    extended = ParameterServerStrategyV2Extended
    _replace(extended, "_update", late)
    _replace(extended, "_call_for_each_replica", _without_threads)
    _replace(extended, "_use_merge_call", lambda _: lambda self: self._num_replicas_in_sync > 1)
    _replace(
        extended,
        "_replica_ctx_all_reduce",
        lambda reduce: (
            lambda self, op, value, options=None: (
                value if self._num_replicas_in_sync == 1 else reduce(self, op, value, options)
            )
        ),
    )


def _without_threads(call: Callable[..., Any]) -> Any:
    """In a thread of its own a replica can not update a variable inside a branch, as `strategy.run` runs it."""

    def run(self: Any, fn: Any, args: Any, kwargs: Any) -> Any:
        if self._num_replicas_in_sync > 1:
            return call(self, fn, args, kwargs)
        warn_unless_scheduled(self)
        with tf.distribute.ReplicaContext(self._container_strategy(), 0):
            return fn(*args, **kwargs)

    return run


def _seeds() -> None:
    def from_step(draw: Callable[..., Any]) -> Any:
        return lambda self, ordered=True: seeds.next_seed(draw, self, ordered)

    _replace(keras.random.SeedGenerator, "next", from_step)


def _trainer() -> None:
    def epoch_iterator(*args: Any, distribute_strategy: Any = None, **kwargs: Any) -> Any:
        if not isinstance(distribute_strategy, ParameterServerStrategyV2):
            kind = TFEpochIterator
        elif isinstance(kwargs.get("x"), tf.distribute.DistributedDataset):
            raise UnsupportedError(
                "Data must be given as it is, and tfps deals it out. Received: a dataset that the strategy has "
                "distributed already. Pass the tf.data.Dataset, or the function of the input context, itself."
            )
        else:
            kind = PipelineEpochIterator if callable(kwargs.get("x")) else ClusterEpochIterator
        return kind(*args, distribute_strategy=distribute_strategy, **kwargs)

    keras_trainer.TFEpochIterator = epoch_iterator
    for kind, predicts in (("train", False), ("test", False), ("predict", True)):
        _replace(TensorFlowTrainer, f"make_{kind}_function", functools.partial(_maker, kind, predicts))

    def symbolic_build(build: Callable[..., Any]) -> Any:
        def from_shapes(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
            if _is_under_ps(self):
                return build_symbolically(self, iterator, data_batch)
            return build(self, iterator=iterator, data_batch=data_batch)

        return from_shapes

    _replace(TensorFlowTrainer, "_maybe_symbolic_build", symbolic_build)


def _callbacks() -> None:
    """A callback that acts between batches finds no step under way, so it has to be known before they start."""

    def announced(kind: str, begin: Callable[..., Any]) -> Any:
        def start(self: Any, logs: Any = None) -> None:
            function = getattr(self.model, f"{kind}_function", None)
            if isinstance(function, ClusterFunction):
                function.in_rounds = watches_batches(self.callbacks, kind)
            begin(self, logs)

        return start

    for kind in ("train", "test", "predict"):
        _replace(keras.callbacks.CallbackList, f"on_{kind}_begin", functools.partial(announced, kind))


def _tables() -> None:
    """A lookup table, one on each worker, is found inside loops and branches too.

    TensorFlow gives a worker its own table when it calls a function, and calls no loop or branch: in these a table,
    the one kind of value that is found this way, had no value at all.
    """

    def outside(_: Any) -> Any:
        def capture(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self.outer_graph.capture_call_time_value(*args, **kwargs)

        return capture

    _replace(ControlFlowFuncGraph, "capture_call_time_value", outside)


def _maker(kind: str, predicts: bool, make: Callable[..., Any]) -> Any:
    attribute = f"{kind}_function"

    def make_function(self: Any, force: bool = False) -> Any:
        if not _is_under_ps(self):
            return make(self, force=force)
        prepare(self)
        if getattr(self, attribute) is None or force:
            setattr(self, attribute, ClusterFunction(self, getattr(self, f"{kind}_step"), predicts))
        return getattr(self, attribute)

    return make_function


def _is_under_ps(model: Any) -> bool:
    return isinstance(model.distribute_strategy, ParameterServerStrategyV2)
