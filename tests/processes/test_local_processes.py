"""Clusters whose tasks are processes: they train, fail and come back, and never outlive the program."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from tfps.cluster import processes
from tfps.cluster.local import LocalCluster
from tfps.errors import ClusterClosedError, ClusterTimeoutError, TaskFailedError, UnsupportedError

START = """
import os, sys, time
print("main runs", flush=True)
from tfps.cluster.local import LocalCluster
began = time.monotonic()
cluster = LocalCluster(workers=1, ps=1, processes=True)
print(f"started in {time.monotonic() - began:.1f} s", file=sys.stderr)
"""

TRAIN = """
import json, psutil
import tensorflow as tf
from tfps.cluster.local import LocalCluster

with LocalCluster(workers=2, ps=2, processes=True) as cluster:
    spec = tf.train.ClusterSpec(cluster.cluster_spec)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def step():
        total.assign_add(1)

    def count(steps):
        for _ in range(steps):
            coordinator.schedule(step)
        coordinator.join()
        print(int(total), flush=True)

    count(100)
    cluster.kill("worker", 1)
    count(100)
    cluster.restart("worker", 1)
    count(100)
    tasks = [process.pid for process in psutil.Process().children(recursive=True)]
print(json.dumps(tasks))
"""


def gone(pids, seconds=15.0):
    """Whether all the processes end before the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(map(runs, pids)):
            return True
        select_nothing()
    return False


def runs(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
