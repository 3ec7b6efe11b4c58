"""The cluster that this process is connected to: strategies enter as they connect, to be asked for.

TensorFlow has one connection per process. Connecting to another cluster makes every variable of the first
unusable: TensorFlow speaks of invalid devices then, and crashes where the process came back to the first.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import tensorflow as tf

from tfps.cluster.sources import RunningCluster
from tfps.errors import ClusterClosedError


class _Connection(NamedTuple):
    ordinal: int
    cluster: RunningCluster | None


_connections: weakref.WeakKeyDictionary[Any, _Connection] = weakref.WeakKeyDictionary()
_started: weakref.WeakSet[RunningCluster] = weakref.WeakSet()
_ordinal = 0
_spec: tf.train.ClusterSpec | None = None


def started(cluster: RunningCluster) -> None:
    """Note a cluster that this process runs, so that a strategy made from its addresses is known to be on it."""
    _started.add(cluster)


def connected(strategy: Any, spec: tf.train.ClusterSpec, cluster: RunningCluster | None = None) -> None:
    """Note that a strategy has just connected this process to a cluster.

    Strategies on the very same cluster share a connection, and all of them stay usable.

    Args:
        strategy: The strategy; only a weak reference to it is kept.
        spec: The addresses it connected to.
        cluster: The running cluster behind it, if this process started it; it lives as long as the strategy.
    """
    global _ordinal, _spec
    if spec != _spec:
        _ordinal += 1
        _spec = spec
    _connections[strategy] = _Connection(_ordinal, cluster or _cluster_at(spec))


def _cluster_at(spec: tf.train.ClusterSpec) -> RunningCluster | None:
    jobs = spec.as_dict()
    return next((c for c in _started if all(jobs.get(job) == tasks for job, tasks in c.cluster_spec.items())), None)


def check_usable(strategy: Any) -> None:
    """Check that a strategy's variables can still be used.

    A strategy that was made before tfps was imported is usable until another one connects.

    Args:
        strategy: A parameter-server strategy.

    Raises:
        ClusterClosedError: Its cluster was closed, or this process has connected to another one since.
    """
    connection = _connections.get(strategy, _Connection(0, None))
    remedy = "Make the strategy and, in its scope, the model again"
    if connection.cluster is not None and connection.cluster.closed:
        raise ClusterClosedError(
            f"A model must be used before its cluster is closed. Received: one on {connection.cluster!r}. "
            f"Start a cluster. {remedy}."
        )
    if connection.ordinal != _ordinal:
        raise ClusterClosedError(
            "A model must be on the cluster that this process connected to last. Received: one on an earlier "
            f"cluster. {remedy}."
        )


def check_variable_usable(variable: Any) -> None:
    """Check that a variable can still be used.

    Args:
        variable: A variable on a parameter server; one made before tfps was imported passes.

    Raises:
        ClusterClosedError: Its cluster was closed, or this process has connected to another one since.
    """
    made_under = getattr(variable, "made_under", None)
    strategy = made_under() if made_under is not None else None
    if strategy is not None:
        check_usable(strategy)
