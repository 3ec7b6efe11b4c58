"""Descriptions of clusters, as people and launchers write them (K4, K5)."""

import copy
import warnings

import pytest

from tfps.cluster.config import parse_cluster
from tfps.errors import ClusterConfigError

WORKERS = ["10.0.0.1:2222", "10.0.0.2:2222"]
PS = ["10.0.0.3:2222"]
GOOD = {"worker": WORKERS, "ps": PS}


def faults_of(config):
    with pytest.raises(ClusterConfigError) as caught:
        parse_cluster(config)
    return caught.value.faults


@pytest.mark.parametrize(
    ("config", "rule", "received", "remedy"),
    [
        ({**GOOD, "ps": ["10.0.0.3"]}, "/job:ps/task:0 must be", "'10.0.0.3'", '"10.0.0.3:2222"'),
        ({**GOOD, "ps": ["10.0.0.3:"]}, "/job:ps/task:0 must be", "'10.0.0.3:'", '"10.0.0.1:2222"'),
        ({**GOOD, "ps": [":2222"]}, "/job:ps/task:0 must be", "':2222'", '"10.0.0.1:2222"'),
        ({**GOOD, "ps": ["h:x"]}, "/job:ps/task:0 must be", "'h:x'", '"10.0.0.1:2222"'),
        ({**GOOD, "ps": ["grpc://h:2"]}, "/job:ps/task:0 must be", "'grpc://h:2'", "scheme"),
        ({**GOOD, "ps": ["::1:2222"]}, "/job:ps/task:0 must be", "'::1:2222'", '"[::1]:2222"'),
        ({**GOOD, "ps": ["[::1]"]}, "/job:ps/task:0 must be", "'[::1]'", '"[::1]:2222"'),
        ({**GOOD, "ps": ["[10.0.0.3]:2222"]}, "/job:ps/task:0 must be", "'[10.0.0.3]:2222'", '"[::1]:2222"'),
        ({**GOOD, "ps": [2222]}, "/job:ps/task:0 must be", "2222", "string"),
        ({**GOOD, "ps": [""]}, "/job:ps/task:0 must be", "''", '"host:2222"'),
        ({**GOOD, "ps": ["a:1,b:1"]}, "/job:ps/task:0 must be", "'a:1,b:1'", "string of its own"),
        ({**GOOD, "ps": ["a b:1"]}, "/job:ps/task:0 must be", "'a b:1'", "spaces"),
        ({**GOOD, "ps": ["a:1\n"]}, "/job:ps/task:0 must be", r"'a:1\n'", "invisible"),
        ({**GOOD, "ps": ["a\0:1"]}, "/job:ps/task:0 must be", r"'a\x00:1'", "invisible"),
        ({**GOOD, "ps": ["a\u200b:1"]}, "/job:ps/task:0 must be", r"'a\u200b:1'", "invisible"),
        ({**GOOD, "ps": ["a:\u0661"]}, "/job:ps/task:0 must be", "'a:\u0661'", '"10.0.0.1:2222"'),
        ({**GOOD, "ps": ["h:0"]}, "port from 1 to 65535", "'h:0'", "listens"),
        ({**GOOD, "ps": ["h:65536"]}, "port from 1 to 65535", "'h:65536'", "listens"),
        ({**GOOD, "ps": ["h:" + "9" * 5000]}, "port from 1 to 65535", "'h:999", "listens"),
        ({**GOOD, "ps": []}, "'ps' must have at least one address", "[]", '"ps": ["host:port"'),
        ({**GOOD, "ps": "h:2222"}, "must be a list of addresses", "'h:2222'", '"ps": ["host:port"'),
        ({**GOOD, "ps": None}, "must be a list of addresses", "None", '"ps": ["host:port"'),
        ({**GOOD, "ps": b"h:1"}, "must be a list of addresses", "b'h:1'", '"ps": ["host:port"'),
        ({**GOOD, "ps": {}}, "'ps' must have at least one address", "[]", '"ps": ["host:port"'),
        ({**GOOD, "ps": {"first": "a:1"}}, "must be 0, 1, 2, ...", "['first']", "List every task"),
        ({**GOOD, "ps": {float("inf"): "a:1"}}, "must be 0, 1, 2, ...", "[inf]", "List every task"),
        ({**GOOD, "worker": {"0": "a:1", "2": "b:1"}}, "without a gap", "['0', '2']", "List every task"),
        ({**GOOD, "worker": ["a:1", "a:1"]}, "address of its own", "/job:worker/task:1", "another"),
        ({**GOOD, "chief": ["10.0.0.3:2222"]}, "address of its own", "/job:chief/task:0", "another"),
        ({"worker": ["localhost:1"], "ps": ["127.0.0.1:1"]}, "of its own", "'127.0.0.1:1'", "another"),
        ({"worker": ["Host:1"], "ps": ["host:1"]}, "of its own", "/job:worker/task:0 and for /job:ps/task:0", "port"),
        ({**GOOD, "evaluator": ["10.0.0.3:2222"]}, "of its own", "/job:evaluator/task:0", "another"),
        ({}, "must have a worker and a ps", "no jobs at all", "tfps.LocalCluster()"),
        ({"cluster": {}}, "must have a worker and a ps", "no jobs at all", "tfps.LocalCluster()"),
        ({"cluster": {}, "task": {"type": "ps", "index": 0}}, "a worker and a ps", "no jobs at all", "LocalCluster"),
        ({"worker": WORKERS}, "must have a ps", "['worker']", '"ps": ["host:port"'),
        ({"ps": PS}, "must have a worker", "['ps']", '"worker": ["host:port"'),
        ({**GOOD, "chief": ["a:1", "b:1"]}, "one chief at most", "['a:1', 'b:1']", "first"),
        ({**GOOD, "chief": ["a:1"], "master": ["b:1"]}, "chief must be given once", "'master'", "Keep one"),
        ({**GOOD, "gpu": ["a:1"]}, "A job must be one of 'chief'", "'gpu'", "Rename"),
        ({"ps_hosts": PS, "worker": WORKERS}, "A job must be one of", "'ps_hosts'", "mean 'ps'?"),
        ({"ps": PS, "worker_hosts": WORKERS}, "A job must be one of", "'worker_hosts'", "mean 'worker'?"),
        ({"ps": PS, "workers": WORKERS}, "A job must be one of", "'workers'", "mean 'worker'?"),
        ({"PS": PS, "worker": WORKERS}, "A job must be one of", "'PS'", "mean 'ps'?"),
        ({"parameter_server": PS, "worker": WORKERS}, "A job must be one of", "'parameter_server'", "mean 'ps'?"),
        ({**GOOD, "coordinator": ["c:1"]}, "A job must be one of", "'coordinator'", "mean 'chief'?"),
        ({**GOOD, "\u7cbe": ["c:1"]}, "A job must be one of", "'\u7cbe'", "Rename"),
        ({**GOOD, None: ["c:1"]}, "A job must be one of", "None", "Rename"),
        ({**GOOD, "evaluators": ["e:1"]}, "A job must be one of", "'evaluators'", "mean 'evaluator'?"),
        ({"clusters": GOOD}, 'the key "cluster"', "'clusters'", 'mean "cluster"?'),
        ({"cluster": GOOD, "tasks": {"type": "worker", "index": 0}}, 'the key "task"', "'tasks'", 'mean "task"?'),
        ({"cluster": [1]}, '"cluster" must be an object', "[1]", '"worker": ["host:port"'),
        ({"task": {"type": "worker", "index": 0}}, 'the key "cluster"', "['task']", 'jobs under "cluster"'),
        (
            {**GOOD, "task": {"type": "ps", "index": 0}},
            'the key "cluster"',
            "'worker', 'ps', 'task'",
            'under "cluster"',
        ),
        (
            {"sparseCluster": {"ps": PS}, "task": {"type": "ps", "index": 0}},
            "lists every task",
            "10.0.0.3",
            "enableDynamicWorker",
        ),
        ({"cluster": GOOD, "rpc_layer": 3}, '"rpc_layer" must be', "3", "Leave it out"),
    ],
)
def test_a_fault_says_rule_received_and_remedy(config, rule, received, remedy):
    (fault,) = faults_of(config)
    said_rule, rest = fault.split(" Received: ")
    assert rule in said_rule
    assert received in rest
    assert remedy in rest


@pytest.mark.parametrize(
    ("task", "rule", "received", "remedy"),
    [
        ({"task": 0, "type": "ps"}, 'the key "index"', "'task': 0", "mean 'index' by 'task'?"),
        ({"index": 0, "job": "ps"}, 'the key "type"', "'job': 'ps'", "mean 'type' by 'job'?"),
        ({"type": "ps"}, 'the key "index"', "{'type': 'ps'}", "Add 'index'"),
        ({"type": "ps", "Index": 0}, 'the key "index"', "'Index': 0", "mean 'index' by 'Index'?"),
        ({"type": "ps", "rank": 0}, 'the key "index"', "'rank': 0", "mean 'index' by 'rank'?"),
        ({"type": "workers", "index": 0}, "a job of the cluster", "'workers'", "mean 'worker'?"),
        ({"type": "PS", "index": 0}, "a job of the cluster", "'PS'", "mean 'ps'?"),
        ({"type": "master", "index": 0}, "a job of the cluster", "'master'", 'Add "chief"'),
        ({"type": "chief", "index": 0}, "a job of the cluster", "'chief'", 'Add "chief"'),
        ({"type": "gpu", "index": 0}, "a job of the cluster", "'gpu'", "Name one"),
        ({"type": ["ps"], "index": 0}, "a job of the cluster", "['ps']", "Name one"),
        ({"type": "ps", "index": 1}, "below the number", "index 1, with 1", "missing task"),
        ({"type": "ps", "index": -1}, "integer of at least 0", "-1", "Count from 0"),
        ({"type": "ps", "index": "one"}, "integer of at least 0", "'one'", "Count from 0"),
        ({"type": "ps", "index": "1.0"}, "integer of at least 0", "'1.0'", "Count from 0"),
        ({"type": "ps", "index": 0.0}, "integer of at least 0", "0.0", "Count from 0"),
        ({"type": "ps", "index": None}, "integer of at least 0", "None", "Count from 0"),
        ({"type": "ps", "index": "9" * 5000}, "integer of at least 0", "'999", "Count from 0"),
        ({"type": "ps", "index": True}, "integer of at least 0", "True", "Count from 0"),
        ("ps", '"task" must be an object', "'ps'", '"type": "worker"'),
    ],
)
def test_a_faulty_task(task, rule, received, remedy):
    (fault,) = faults_of({"cluster": GOOD, "task": task})
    said_rule, rest = fault.split(" Received: ")
    assert rule in said_rule
    assert received in rest
    assert remedy in rest


def test_all_faults_are_reported_at_once():
    faults = faults_of(
        {"cluster": {"ps_hosts": ["a", "b:0"], "worker": ["c:1", "c:1"]}, "task": {"type": "chief", "index": "x"}}
    )
    for index, expected in enumerate(["'ps_hosts'", "'a'", "'b:0'", "'c:1'", "'chief'", "'x'"]):
        assert expected in faults[index].split("Received: ")[1]
    assert len(faults) == 6


def test_the_error_counts_and_lists_the_faults():
    with pytest.raises(ClusterConfigError, match=r"2 faults:\n  - .*worker.*\n  - .*ps"):
        parse_cluster({"chief": ["c:1"]})


def test_no_fault_of_many_is_left_out():
    workers = [f"10.0.{i // 250}.{i % 250}" for i in range(2000)]
    faults = faults_of({"worker": workers, "ps": [f"h{i}:0" for i in range(2000)]})
    assert len(faults) == 4000
    assert "/job:worker/task:1999" in faults[1999]


def test_what_was_received_is_cut_where_nobody_would_read_on():
    (fault,) = faults_of({**GOOD, "ps": ["x" * 100_000]})
    assert len(fault) < 1000


def test_normal_form_of_what_launchers_write():
    sagemaker = {
        "cluster": {"master": ["algo-1:2222"], "worker": ["algo-2:2222"], "ps": ["algo-1:2223", "algo-2:2223"]},
        "environment": "cloud",
        "task": {"index": "0", "type": "master"},
    }
    description = parse_cluster(sagemaker)
    assert description.jobs == {
        "chief": ["algo-1:2222"],
        "worker": ["algo-2:2222"],
        "ps": ["algo-1:2223", "algo-2:2223"],
    }
    assert (description.task_type, description.task_id, description.rpc_layer) == ("chief", 0, "grpc")


def test_what_vertex_ai_writes():
    config = {
        "cluster": {
            "chief": ["cmle-training-workerpool0-0:2222"],
            "worker": ["cmle-training-workerpool1-0:2222", "cmle-training-workerpool1-1:2222"],
            "ps": ["cmle-training-workerpool2-0:2222"],
            "evaluator": ["cmle-training-workerpool3-0:2222"],
        },
        "environment": "cloud",
        "task": {"type": "worker", "index": 1, "cloud": "c1", "trial": "1"},
        "job": '{"python_module": "trainer.task"}',
    }
    description = parse_cluster(config)
    assert set(description.jobs) == {"chief", "worker", "ps"}
    assert description.evaluator == ("cmle-training-workerpool3-0:2222",)
    assert (description.task_type, description.task_id) == ("worker", 1)


def test_kubeflow_workers_with_indices_as_keys():
    config = {
        "cluster": {"worker": {"1": "w1:2222", "0": "w0:2222"}, "ps": ["p:2222"]},
        "sparseCluster": {"worker": {"1": "w1:2222"}, "ps": ["p:2222"]},
        "task": {"type": "worker", "index": "1"},
    }
    description = parse_cluster(config)
    assert description.jobs["worker"] == ["w0:2222", "w1:2222"]
    assert (description.task_type, description.task_id) == ("worker", 1)


@pytest.mark.parametrize("listed", [True, False])
def test_evaluators_stay_out_of_the_training_cluster(listed):
    cluster = {**GOOD, "chief": ["c:1"]} | ({"evaluator": ["e:1", "e:2"]} if listed else {})
    task = {"type": "evaluator", "index": 0, "trial": "7"}
    description = parse_cluster({"cluster": cluster, "task": task, "job": {"args": []}})
    assert set(description.jobs) == {"worker", "ps", "chief"}
    assert description.evaluator == (("e:1", "e:2") if listed else ())
    assert (description.task_type, description.task_id) == ("evaluator", 0)


def test_rpc_layer_is_honoured():
    assert parse_cluster({"cluster": GOOD, "rpc_layer": "grpc+loas"}).rpc_layer == "grpc+loas"


def test_without_a_task_this_process_is_the_coordinator():
    assert parse_cluster(GOOD).task_type is None
    chief = parse_cluster({**GOOD, "chief": ["c:1"]})
    assert (chief.task_type, chief.task_id) == ("chief", 0)


@pytest.mark.parametrize("address", ["[fe80::1]:1", "[fe80::1%eth0]:1", "a.b-c_d.svc:65535", "b\u00fccher.example:1"])
def test_addresses_that_are_accepted(address):
    assert parse_cluster({**GOOD, "ps": [address]}).jobs["ps"] == [address]


def test_what_was_given_is_not_changed():
    given = {"cluster": {"master": ["c:1"], "evaluator": ["e:1"], **GOOD}, "task": {"type": "master", "index": "0"}}
    before = copy.deepcopy(given)
    parse_cluster(given).jobs["ps"].append("more:1")
    assert given == before


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.1.1", "0.0.0.0", "[::1]", "[::]"])
def test_loopback_beside_other_hosts_is_warned_of_by_name(host):
    with pytest.warns(UserWarning, match="other hosts can reach") as caught:
        parse_cluster({**GOOD, "chief": [f"{host}:2222"]})
    received, remedy = str(caught[0].message).split("Received: ")[1].rsplit(". ", 1)
    assert received.startswith(f"/job:chief/task:0 at {host}:2222, while other hosts have")
    assert received.endswith("/job:worker/task:1 at 10.0.0.2:2222, /job:ps/task:0 at 10.0.0.3:2222")
    assert remedy == "Write the host's name on the network instead."


@pytest.mark.parametrize(
    "config",
    [
        {"worker": ["localhost:1", "127.0.0.1:2"], "ps": ["[::1]:3"]},
        {**GOOD, "evaluator": ["localhost:1"]},
    ],
)
def test_loopback_is_fine_on_one_machine_and_for_evaluators(config):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_cluster(config)
