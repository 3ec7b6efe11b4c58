"""What the strategy refuses before it connects, and what it is once connected."""

import time

import numpy as np
import portpicker
import pytest
import tensorflow as tf

import tfps
from tfps.errors import ClusterClosedError, ClusterConfigError, ClusterTimeoutError, UnsupportedError

CLUSTER = {"worker": ["10.0.0.1:2222"], "ps": ["10.0.0.2:2222"]}


@pytest.fixture(scope="module")
def cluster():
    with tfps.LocalCluster(workers=1, ps=1) as cluster:
        yield cluster


@pytest.mark.parametrize("option", ["biggest", "Balanced", "", 3, None, ["balanced"]])
def test_an_unknown_placement_is_refused_before_any_wait(option):
    with pytest.raises(UnsupportedError, match="'round_robin' or a function") as caught:
        tfps.ParameterServerStrategy(CLUSTER, variable_placement=option)
    assert f"Received: {option!r}. Leave it out" in str(caught.value)


@pytest.mark.parametrize("option", ["auto", 3])
def test_a_partitioner_that_is_none_is_refused_before_any_wait(option):
    with pytest.raises(UnsupportedError, match=rf"partitioners\. Received: {option!r}\. Leave it out"):
        tfps.ParameterServerStrategy(CLUSTER, variable_partitioner=option)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "60", True])
def test_a_timeout_that_is_none_is_refused(seconds):
    with pytest.raises(UnsupportedError, match=rf"positive number of seconds\. Received: {seconds!r}\."):
        tfps.ParameterServerStrategy(CLUSTER, connect_timeout=seconds)


@pytest.mark.parametrize("job", ["worker", "ps", "evaluator"])
def test_only_the_coordinator_makes_a_strategy(job):
    with pytest.raises(UnsupportedError, match=rf"coordinator's process alone\. Received: the task type '{job}'"):
        tfps.ParameterServerStrategy({"cluster": CLUSTER, "task": {"type": job, "index": "0"}})


def test_a_faulty_description_is_refused():
    with pytest.raises(ClusterConfigError, match="must have a ps"):
        tfps.ParameterServerStrategy({"worker": ["10.0.0.1:2222"]})


def test_nothing_given_is_refused():
    with pytest.raises(ClusterConfigError, match=r"TF_CONFIG.*tfps\.LocalCluster"):
        tfps.ParameterServerStrategy()


def test_a_closed_cluster_is_refused():
    with tfps.LocalCluster(workers=1, ps=1) as cluster:
        pass
    with pytest.raises(ClusterClosedError, match=r"must be open.*Received: LocalCluster\(.*closed"):
        tfps.ParameterServerStrategy(cluster)


@pytest.mark.parametrize("seconds", [0.3, np.float32(0.25), np.int64(1)])
def test_the_deadline_is_kept(cluster, seconds):
    (worker,) = cluster.cluster_spec["worker"]
    ps = f"localhost:{portpicker.pick_unused_port()}"
    start = time.monotonic()
    with pytest.raises(ClusterTimeoutError, match=rf"within {float(seconds):g} s\.") as caught:
        tfps.ParameterServerStrategy({"worker": [worker], "ps": [ps]}, connect_timeout=seconds)
    assert seconds <= time.monotonic() - start < seconds + 3
    missing, answered = str(caught.value).split("\nanswered:\n")
    assert f"/job:ps/task:0 at {ps}" in missing
    assert f"/job:worker/task:0 at {worker}" in answered


def test_it_is_tensorflows_strategy(cluster):
    strategy = tfps.ParameterServerStrategy(cluster)
    assert isinstance(strategy, tf.distribute.ParameterServerStrategy)
    assert isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy


def test_it_has_one_coordinator(cluster):
    strategy = tfps.ParameterServerStrategy(cluster)
    coordinator = strategy.coordinator
    assert isinstance(coordinator, tf.distribute.coordinator.ClusterCoordinator)
    assert strategy.coordinator is coordinator
    assert tf.distribute.coordinator.ClusterCoordinator(strategy) is coordinator
    assert tfps.ParameterServerStrategy(cluster).coordinator is not coordinator
    with strategy.scope():
        total = tf.Variable(0)
    step = tf.function(lambda: total.assign_add(1))
    for _ in range(5):
        strategy.coordinator.schedule(step)
    coordinator.join()
    assert int(total) == 5


def test_its_repr_says_what_it_was_made_of(cluster):
    strategy = tfps.ParameterServerStrategy(cluster, variable_placement="round_robin")
    assert repr(strategy) == "ParameterServerStrategy(workers=1, ps=1, variable_placement='round_robin')"
