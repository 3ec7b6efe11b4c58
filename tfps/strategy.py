"""The parameter-server strategy: the source of a cluster enters, a connected `tf.distribute` strategy leaves.

It adds three things to TensorFlow's: it waits for the cluster with a deadline, it balances the bytes on the
parameter servers, and it hands out its coordinator.
"""

from __future__ import annotations

import contextlib
import functools
import math
import numbers
import operator
import os
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps._compat import place_variables_with
from tfps.cluster.current import connected
from tfps.cluster.sources import RunningCluster, cluster_resolver
from tfps.cluster.waiting import wait_for_tasks
from tfps.errors import ClusterClosedError, UnsupportedError

Placement = Callable[[str, tuple[int, ...] | None, tf.DType | None, tuple[int, ...]], int]
_NAMED_CLUSTER_SECONDS = 600.0
_LOCAL_CLUSTER_SECONDS = 60.0


class ParameterServerStrategy(tf.distribute.ParameterServerStrategy):
    """Trains on workers whose variables live on parameter servers; to be made in the coordinator's process.

    Args:
        source: Where the tasks are: whatever `tfps.cluster_resolver` takes, or a `tfps.LocalCluster`.
        variable_placement: Which parameter server (PS) gets each new variable. `"balanced"`: the one with the
            fewest bytes so far, optimizer slots counted. `"round_robin"`: TensorFlow's way, one after the other.
            Or a function `(name, shape, dtype, ps_bytes) -> index of a PS`, where `name` is the variable's own
            (`"kernel"`, not the path of its layer), `shape` a tuple of `int`, `dtype` a `tf.DType` and `ps_bytes` a
            tuple with the bytes on each PS; shape and dtype are None where they are not known beforehand. Slots
            always live beside their variable.
        variable_partitioner: One of `tf.distribute.experimental.partitioners`, or None for whole variables.
        connect_timeout: Seconds to wait until every worker and PS answers; None is 600 s, or 60 s for a
            `LocalCluster`.

    Raises:
        ClusterConfigError: The source breaks a rule; every fault is listed.
        ClusterClosedError: The source is a `LocalCluster` that was closed.
        ClusterTimeoutError: A task did not answer in time; says who did and who did not.
        UnsupportedError: An option has no such value, this process is not the coordinator, or a worker has
            several GPUs.

    Example:
        >>> with tfps.LocalCluster(workers=2, ps=2) as cluster:
        ...     strategy = tfps.ParameterServerStrategy(cluster)
        ...     with strategy.scope():
        ...         model = keras.Sequential([keras.layers.Dense(1)])
    """

    def __init__(
        self,
        source: Any = None,
        *,
        variable_placement: str | Placement = "balanced",
        variable_partitioner: Callable[..., Any] | None = None,
        connect_timeout: float | None = None,
    ):
        """Connect; the class says what the arguments are."""
        _check_options(variable_placement, variable_partitioner, connect_timeout)
        local = source if isinstance(source, RunningCluster) and not isinstance(source, type) else None
        if local is not None and local.closed:
            raise ClusterClosedError(
                f"A LocalCluster must be open for a strategy to connect. Received: {local!r}. Start another one."
            )
        resolver = cluster_resolver(source)
        _check_role(resolver)
        spec = resolver.cluster_spec()
        jobs = {job: spec.job_tasks(job) for job in ("worker", "ps")}
        if connect_timeout is None:
            connect_timeout = _NAMED_CLUSTER_SECONDS if local is None else _LOCAL_CLUSTER_SECONDS
        # Otherwise a call to a lost task waits for the task instead of failing.
        os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
        wait_for_tasks(jobs, float(connect_timeout))
        super().__init__(resolver, variable_partitioner)
        connected(self, spec, local)
        if self.num_replicas_in_sync > 1:
            raise UnsupportedError(
                f"A worker must have one GPU at most. Received: {self.num_replicas_in_sync} GPUs per worker. "
                "Make one visible to each, for example with CUDA_VISIBLE_DEVICES."
            )
        self._tasks = {job: len(addresses) for job, addresses in jobs.items()}
        self.variable_placement = variable_placement
        if variable_placement != "round_robin":
            ledger = _Ledger(self._tasks["ps"], variable_placement if callable(variable_placement) else None)
            place_variables_with(self, ledger.choose, ledger.created)

    @property
    def coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator:
        """The `ClusterCoordinator` of this strategy, made at the first use."""
        return tf.distribute.coordinator.ClusterCoordinator(self)

    def worker_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a step function of a hand-written training loop; calling it schedules it on a worker and returns.

        Args:
            function: What a worker is to run, as `strategy.run` takes it. It may use Keras models, optimizers and
                metrics made in the strategy's scope; their counts are exact. A call that fails with its worker is
                run again on another one.

        Returns:
            A function of the same arguments. An argument may be an iterator over a per-worker dataset of the
            coordinator; the worker sees its own. It returns a `tf.distribute.experimental.coordinator.RemoteValue`;
            `strategy.coordinator.join()` waits for all calls and raises what one of them raised.

        Example:
            >>> with tfps.LocalCluster(workers=2, ps=1) as cluster:
            ...     strategy = tfps.ParameterServerStrategy(cluster)
            ...     with strategy.scope():
            ...         total = tf.Variable(0.0)
            ...     @strategy.worker_function
            ...     def add(amount):
            ...         total.assign_add(amount)
            ...         return 2 * amount
            ...     results = [add(tf.constant(1.0)) for _ in range(100)]
            ...     strategy.coordinator.join()
            ...     print(total.numpy(), results[0].fetch())
            100.0 2.0
        """

        @tf.function
        def on_worker(*args: Any, **kwargs: Any) -> Any:
            return self.run(function, args=args, kwargs=kwargs)

        @functools.wraps(function)
        def schedule(*args: Any, **kwargs: Any) -> Any:
            return self.coordinator.schedule(on_worker, args=args, kwargs=kwargs)

        return schedule

    def __repr__(self) -> str:
        return (
            f"ParameterServerStrategy(workers={self._tasks['worker']}, ps={self._tasks['ps']}, "
            f"variable_placement={self.variable_placement!r})"
        )


class _Ledger:
    """Keeps the bytes on every parameter server, and chooses one for each new variable."""

    def __init__(self, ps: int, policy: Placement | None):
        self._bytes = [0] * ps
        self._policy = policy

    def choose(self, creation: dict[str, Any]) -> int:
        """The index of the PS for a variable with these keyword arguments of its creation."""
        if self._policy is None:
            return self._bytes.index(min(self._bytes))
        name = creation.get("name") or "Variable"
        answer = self._policy(name, *_shape_and_dtype(creation), tuple(self._bytes))
        try:
            index = -1 if isinstance(answer, bool) else operator.index(answer)
        except TypeError:
            index = -1
        if not 0 <= index < len(self._bytes):
            raise UnsupportedError(
                f"variable_placement must return an integer from 0 to {len(self._bytes) - 1}, the index of a PS. "
                f"Received: {answer!r} for the variable {name!r}. Return one of these."
            )
        return index

    def created(self, variable: tf.Variable) -> None:
        """Count a new variable for as long as it lives."""
        place = tf.DeviceSpec.from_string(variable.device)
        if place.job != "ps":
            return
        size = (variable.shape.num_elements() or 0) * variable.dtype.size
        self._add(place.task, size)
        weakref.finalize(variable, self._add, place.task, -size).atexit = False

    def _add(self, ps: int, size: int) -> None:
        self._bytes[ps] += size


def _shape_and_dtype(creation: dict[str, Any]) -> tuple[tuple[int, ...] | None, tf.DType | None]:
    """Shape and dtype of a variable before it is made, None where unknown. No value is computed."""
    initial = creation.get("initial_value")
    shape = creation.get("shape")
    dtype = creation.get("dtype")
    shape = getattr(initial, "shape", None) if shape is None else shape
    dtype = getattr(initial, "dtype", None) if dtype is None else dtype
    if (shape is None or dtype is None) and initial is not None:
        # Tracing gives shape and dtype of a function's value, and no value.
        make = initial if callable(initial) else lambda: initial
        traced = tf.function(lambda: tf.convert_to_tensor(make(), dtype), autograph=False)
        # A function that only runs eagerly tells nothing; whatever is wrong with it, making the variable will say.
        with contextlib.suppress(Exception):
            output = traced.get_concrete_function().outputs[0]
            shape, dtype = output.shape, output.dtype
    shape = tf.TensorShape(shape)
    return (
        tuple(shape.as_list()) if shape.is_fully_defined() else None,
        None if dtype is None else tf.as_dtype(dtype),
    )


def _check_options(variable_placement: Any, variable_partitioner: Any, connect_timeout: Any) -> None:
    is_known = isinstance(variable_placement, str) and variable_placement in ("balanced", "round_robin")
    if not is_known and not callable(variable_placement):
        raise UnsupportedError(
            "variable_placement must be 'balanced', 'round_robin' or a function of name, shape, dtype and "
            f"ps_bytes. Received: {variable_placement!r}. Leave it out for 'balanced'."
        )
    if variable_partitioner is not None and not callable(variable_partitioner):
        raise UnsupportedError(
            "variable_partitioner must be None or one of tf.distribute.experimental.partitioners. "
            f"Received: {variable_partitioner!r}. Leave it out for whole variables."
        )
    is_number = isinstance(connect_timeout, numbers.Real) and not isinstance(connect_timeout, bool)
    if connect_timeout is not None and not (is_number and 0 < connect_timeout < math.inf):
        raise UnsupportedError(
            f"connect_timeout must be a positive number of seconds. Received: {connect_timeout!r}. "
            "Leave it out for the default."
        )


def _check_role(resolver: Any) -> None:
    if resolver.task_type in ("worker", "ps", "evaluator"):
        raise UnsupportedError(
            "A ParameterServerStrategy must be made in the coordinator's process alone. Received: the task type "
            f"{resolver.task_type!r}. Let a worker or ps run tf.distribute.Server(...).join() instead, and an "
            "evaluator evaluate without this strategy."
        )
