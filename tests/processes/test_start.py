"""The start of a strategy, in a process of its own because it may not hang (K1, K2)."""

import subprocess
import sys

PREPARE = """
import os
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


def run(script, timeout=100):
    # Servers cannot be stopped, so the process is not asked to end in good order.
    program = PREPARE + script + "\nsys.stdout.flush()\nsys.stderr.flush()\nos._exit(0)\n"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout)


def test_an_evaluator_in_the_cluster_does_not_keep_training_from_starting():
    done = run("""
import keras
import numpy as np

for task in tasks:
    serve(*task)
evaluator = [f"localhost:{portpicker.pick_unused_port()}"]
strategy = tfps.ParameterServerStrategy({**spec, "evaluator": evaluator}, connect_timeout=20)
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.ones((40, 3)), np.ones((40, 1)), batch_size=8, epochs=2, verbose=0)
print("iterations", int(model.optimizer.iterations))
print(os.environ["GRPC_FAIL_FAST"])
""")
    assert done.stdout.splitlines() == ["iterations 10", "use_caller"], done.stderr[-3000:]
    assert "Waiting" not in done.stderr


def test_what_sagemaker_writes_trains():
    done = run("""
import json

for task in tasks:
    serve(*task)
master = [f"localhost:{portpicker.pick_unused_port()}"]
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {**spec, "master": master}, "task": {"type": "master", "index": "0"}, "environment": "cloud"}
)
train(tfps.ParameterServerStrategy())
""")
    assert done.stdout.splitlines() == ["total 20"], done.stderr[-3000:]


def test_a_dead_task_ends_the_wait_at_its_deadline():
    done = run("""
import time

for task in tasks[:-1]:
    serve(*task)
start = time.monotonic()
try:
    tfps.ParameterServerStrategy(spec, connect_timeout=2)
except tfps.errors.ClusterTimeoutError as error:
    print(str(error).replace(spec["ps"][1], "ADDRESS"))
    print("in time", 2 <= time.monotonic() - start < 5)
""")
    assert "did not answer:\n  /job:ps/task:1 at ADDRESS (connection refused)\nanswered:\n" in done.stdout
    assert all(f"/job:{task}" in done.stdout for task in ("worker/task:0", "worker/task:1", "ps/task:0"))
    assert done.stdout.endswith("in time True\n")
    # No terminal and nothing set up for logging: the countdown is seen all the same.
    assert "Waiting for 1 of 4 tasks, 1 s left: /job:ps/task:1" in done.stderr


def test_a_task_that_comes_up_late_is_joined():
    done = run("""
import logging

for task in tasks[:-1]:
    serve(*task)
said = threading.Event()


class Said(logging.Handler):
    def emit(self, record):
        said.set()


def come_late():
    said.wait(30)
    serve("ps", 1)


logging.getLogger("tfps").addHandler(Said())
late = threading.Thread(target=come_late)
late.start()
strategy = tfps.ParameterServerStrategy(spec, connect_timeout=40)
print("waited", said.is_set())
late.join()
train(strategy)
""")
    assert done.stdout.splitlines() == ["waited True", "total 20"], done.stderr[-3000:]


USE = """
import tempfile

import keras
import numpy as np

x, y = np.ones((8, 3)), np.ones((8, 1))


def make_model(source):
    with tfps.ParameterServerStrategy(source).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def use(model):
    for name, use in {
        "fit": lambda: model.fit(x, y, verbose=0),
        "evaluate": lambda: model.evaluate(x, y, verbose=0),
        "predict": lambda: model.predict(x, verbose=0),
        "weights": lambda: model.get_weights(),
        "checkpoint": lambda: tf.train.Checkpoint(model=model).write(tempfile.mkdtemp() + "/model"),
    }.items():
        try:
            use()
            print(name, "works", flush=True)
        except tfps.errors.ClusterClosedError as error:
            print(name, error, flush=True)
"""


def test_a_model_on_a_closed_cluster_says_so():
    done = run(
        USE
        + """
cluster = tfps.LocalCluster(workers=1, ps=1)
directly = make_model(cluster)
through_addresses = make_model(cluster.cluster_spec)
use(directly)
cluster.close()
use(directly)
use(through_addresses)
"""
    )
    lines = done.stdout.splitlines()
    names = ("fit", "evaluate", "predict", "weights", "checkpoint")
    assert lines[:5] == [f"{name} works" for name in names], done.stderr[-3000:]
    refusal = (
        "A model must be used before its cluster is closed. Received: one on LocalCluster(workers=1, ps=1, "
        "processes=False, state='closed'). Start a cluster. Make the strategy and, in its scope, the model again."
    )
    assert lines[5:] == [f"{name} {refusal}" for name in names] * 2


def test_split_variables_are_refused_and_an_earlier_model_is_still_described():
    done = run(
        USE
        + """
model = make_model(tfps.LocalCluster(workers=1, ps=1))
split = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
strategy = tfps.ParameterServerStrategy(tfps.LocalCluster(workers=1, ps=2), variable_partitioner=split)
with strategy.scope():
    in_parts = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
in_parts.compile("sgd", "mse")
try:
    in_parts.fit(x, y, verbose=0)
except tfps.errors.UnsupportedError as error:
    print(error)
print(tfps.placement(model).to_dict()["variables"][0]["ps"], model.weights[0].value.device)
print(model.weights[0].value)
"""
    )
    refusal, place, shown = done.stdout.splitlines()
    assert "must be whole to be trained. Received: variables that a variable_partitioner has split." in refusal
    assert place == "0 /job:ps/replica:0/task:0/device:CPU:0"
    assert "must be on the cluster that this process connected to last" in shown


def test_a_model_on_an_earlier_cluster_says_so():
    done = run(
        USE
        + """
first = make_model(tfps.LocalCluster(workers=1, ps=1))
second = make_model(tfps.LocalCluster(workers=1, ps=1))
use(first)
use(second)
"""
    )
    refusal = (
        "A model must be on the cluster that this process connected to last. Received: one on an earlier cluster. "
        "Make the strategy and, in its scope, the model again."
    )
    names = ("fit", "evaluate", "predict", "weights", "checkpoint")
    expected = [f"{name} {refusal}" for name in names] + [f"{name} works" for name in names]
    assert done.stdout.splitlines() == expected, done.stderr[-3000:]
