"""Clusters of servers inside one process. What trains runs in a process of its own, which may not hang (K10)."""

import os
import re
import subprocess
import sys

import pytest

from tfps.cluster.local import LocalCluster
from tfps.errors import ClusterClosedError, ClusterConfigError, UnsupportedError

# One core and a first cluster of one worker: either could leave the four workers after it too few threads.
TRAIN_ON_TWO_CLUSTERS = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import tensorflow as tf
from tfps.cluster.local import LocalCluster

def count(cluster, steps):
    spec = tf.train.ClusterSpec(cluster.cluster_spec)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0, dtype=tf.int64)
    make = lambda: tf.data.Dataset.range(10**9).map(lambda x: x, num_parallel_calls=4).batch(2).prefetch(2)
    numbers = iter(coordinator.create_per_worker_dataset(make))

    @tf.function
    def step(numbers):
        total.assign_add(tf.size(next(numbers), out_type=tf.int64))

    for _ in range(steps):
        coordinator.schedule(step, args=(numbers,))
    coordinator.join()
    return int(total)

with LocalCluster(workers=1, ps=1) as first:
    print("first", count(first, 10))
print("closed", first.closed)
second = LocalCluster(workers=4, ps=2)
print("second", count(second, 100))
"""


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(workers=2, ps=1) as cluster:
        yield cluster


def test_four_workers_on_one_core_train_and_the_program_ends():
    done = subprocess.run([sys.executable, "-c", TRAIN_ON_TWO_CLUSTERS], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["first 20", "closed True", "second 200"]


def test_cluster_spec_names_one_address_per_task(cluster):
    spec = cluster.cluster_spec
    assert {task_type: len(addresses) for task_type, addresses in spec.items()} == {"worker": 2, "ps": 1}
    addresses = spec["worker"] + spec["ps"]
    assert len(set(addresses)) == 3
    assert all(re.fullmatch(r"localhost:\d+", address) for address in addresses)


def test_changing_the_cluster_spec_does_not_change_the_cluster(cluster):
    cluster.cluster_spec["worker"].clear()
    assert len(cluster.cluster_spec["worker"]) == 2


def test_repr_reads_as_the_call(cluster):
    assert repr(cluster) == "LocalCluster(workers=2, ps=1, processes=False, state='running')"


def test_html_has_a_row_per_task(cluster):
    page = cluster._repr_html_()
    rows = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", page)
    spec = cluster.cluster_spec
    assert rows == [
        ("worker 0", spec["worker"][0], "running"),
        ("worker 1", spec["worker"][1], "running"),
        ("ps 0", spec["ps"][0], "running"),
    ]


def test_html_escapes_what_it_shows(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "_spec", {"worker": ["<script>", "a&b"], "ps": ['"']})
    page = cluster._repr_html_()
    assert "<script>" not in page
    assert "<td>&lt;script&gt;</td>" in page
    assert "<td>a&amp;b</td>" in page


def test_close_is_final_and_may_be_repeated():
    cluster = LocalCluster(workers=1, ps=1)
    cluster.close()
    cluster.close()
    assert cluster.closed
    assert repr(cluster) == "LocalCluster(workers=1, ps=1, processes=False, state='closed')"
    assert "<td>closed</td>" in cluster._repr_html_()
    with (
        pytest.raises(ClusterClosedError, match=r"before the cluster is closed\. Received: LocalCluster"),
        cluster,
    ):
        pass
    with pytest.raises(ClusterClosedError):
        cluster.kill("worker", 0)


@pytest.mark.parametrize("method", ["kill", "restart", "logs"])
def test_tasks_inside_this_process_cannot_be_handled_one_by_one(cluster, method):
    with pytest.raises(UnsupportedError, match=rf"`{method}` must .* Received: .*processes=True"):
        getattr(cluster, method)("worker", 0)


def test_every_wrong_count_is_reported():
    with pytest.raises(ClusterConfigError) as refused:
        LocalCluster(workers=0, ps="2", processes="no")
    assert len(refused.value.faults) == 3
    assert "`processes` must be True or False. Received: processes='no'." in str(refused.value)
    assert "`workers` must be a positive int. Received: workers=0." in str(refused.value)
    assert "`ps` must be a positive int. Received: ps='2'." in str(refused.value)
    with pytest.raises(ClusterConfigError, match="workers=True"):
        LocalCluster(workers=True)


def test_no_environment_variable_is_changed(cluster):
    before = dict(os.environ)
    LocalCluster(workers=1, ps=1).close()
    assert dict(os.environ) == before
