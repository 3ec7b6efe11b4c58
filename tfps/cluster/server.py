"""One TensorFlow server of a cluster: a cluster and the name of one task enter, a listening server leaves.

The same function serves the tasks that live inside this process and those that have a process of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

# TensorFlow sizes one pool per process, with its first server, and every later server of the process shares
# it. Work that waits for other tasks occupies a thread of it, and idle threads cost next to nothing.
_LEAST_THREADS = 32

# A server that nobody refers to is destroyed, and TensorFlow cannot stop one cleanly: each lives as long as
# its process.
_servers: list[tf.distribute.Server] = []


def start_server(cluster_spec: Mapping[str, Sequence[str]], task_type: str, task_id: int) -> None:
    """Start the server of one task in this process; it serves until the process ends.

    Args:
        cluster_spec: Lists of `"host:port"` strings by task type.
        task_type: A key of `cluster_spec`.
        task_id: An index into `cluster_spec[task_type]`.

    Raises:
        tf.errors.UnknownError: The server cannot listen on its port.
    """
    _servers.append(
        tf.distribute.Server(
            tf.train.ClusterSpec(cluster_spec),
            job_name=task_type,
            task_index=task_id,
            protocol="grpc",
            config=_session_config(len(cluster_spec["worker"])),
        )
    )


def _session_config(workers: int) -> Any:
    """Enough threads for every worker to wait at once, however few cores the machine has."""
    threads = max(_LEAST_THREADS, workers + 1, os.cpu_count() or 1)
    return tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
