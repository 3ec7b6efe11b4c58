"""The start of a strategy, in a process of its own because it may not hang."""

import subprocess
import sys

PREPARE = """
import os
import socket
import sys
import threading

import portpicker
import tensorflow as tf

import tfps

spec = {job: [f"localhost:{portpicker.pick_unused_port()}" for _ in range(2)] for job in ("worker", "ps")}
tasks = [(job, index) for job in spec for index in range(2)]
threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=16)
servers = {}


def serve(job, index):
    servers[job, index] = tf.distribute.Server(
        tf.train.ClusterSpec(spec), job, index, protocol="grpc", config=threads
    )


def train(strategy):
    with strategy.scope():
        total = tf.Variable(0)
    step = tf.function(lambda: total.assign_add(1))
    for _ in range(20):
        strategy.coordinator.schedule(step)
    strategy.coordinator.join()
    print("total", int(total), flush=True)
"""


def run(script, timeout=60):
    # Servers cannot be stopped, so the process is not asked to end in good order.
    program = PREPARE + script + "\nsys.stdout.flush()\nsys.stderr.flush()\nos._exit(0)\n"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout)


def test_an_evaluator_in_the_cluster_does_not_keep_training_from_starting():
    done = run("""
for task in tasks:
    serve(*task)
evaluator = [f"localhost:{portpicker.pick_unused_port()}"]
strategy = tfps.ParameterServerStrategy({**spec, "evaluator": evaluator}, connect_timeout=20)
train(strategy)
print(os.environ["GRPC_FAIL_FAST"])
""")
    assert done.stdout.splitlines() == ["total 20", "use_caller"], done.stderr[-3000:]
    assert "Waiting" not in done.stderr


def test_a_dead_task_ends_the_wait_at_its_deadline():
    done = run("""
for task in tasks[:-1]:
    serve(*task)
try:
    tfps.ParameterServerStrategy(spec, connect_timeout=2)
except tfps.errors.ClusterTimeoutError as error:
    print(str(error).replace(spec["ps"][1], "ADDRESS"))
""")
    assert "did not answer:\n  /job:ps/task:1 at ADDRESS (connection refused)\nanswered:\n" in done.stdout
    assert all(f"/job:{task}" in done.stdout for task in ("worker/task:0", "worker/task:1", "ps/task:0"))
    assert "Waiting for 1 of 4 tasks, 1 s left: /job:ps/task:1" in done.stderr


def test_a_task_that_comes_up_late_is_joined():
    done = run("""
for task in tasks[:-1]:
    serve(*task)
said = threading.Event()


class Screen:
    isatty = flush = lambda self: False

    def write(self, text):
        said.set()


def come_late():
    said.wait(30)
    serve("ps", 1)


stderr, sys.stderr = sys.stderr, Screen()
late = threading.Thread(target=come_late)
late.start()
strategy = tfps.ParameterServerStrategy(spec, connect_timeout=40)
print("waited", said.is_set())
late.join()
sys.stderr = stderr
train(strategy)
""")
    assert done.stdout.splitlines() == ["waited True", "total 20"], done.stderr[-3000:]


def test_an_earlier_model_is_refused_before_tensorflow_sees_it():
    done = run("""
from tfps.cluster.current import check_usable

first = tfps.ParameterServerStrategy(tfps.LocalCluster(workers=1, ps=1))
second = tfps.ParameterServerStrategy(tfps.LocalCluster(workers=1, ps=1))
check_usable(second)
try:
    check_usable(first)
except tfps.errors.ClusterClosedError as error:
    print(error)
train(second)
""")
    refusal, total = done.stdout.splitlines()
    assert "connected to last. Received: one on an earlier cluster" in refusal
    assert total == "total 20"
