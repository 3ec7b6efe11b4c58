"""Everything a cluster may be described by, and which of them counts."""

import json
import os

import pytest
import tensorflow as tf

from tfps.cluster.local import LocalCluster
from tfps.cluster.sources import cluster_resolver, describe_cluster
from tfps.errors import ClusterConfigError

CLUSTER = {"worker": ["10.0.0.1:2222"], "ps": ["10.0.0.2:2222", "10.0.0.3:2222"]}
TF_CONFIG = {
    "cluster": {**CLUSTER, "chief": ["10.0.0.4:2222"], "evaluator": ["10.0.0.5:2222"]},
    "task": {"type": "ps", "index": 1},
}


class OpenCluster:
    cluster_spec = CLUSTER
    closed = False


def spec_of(source):
    return cluster_resolver(source).cluster_spec().as_dict()


@pytest.mark.parametrize(
    "source",
    [
        CLUSTER,
        {"cluster": CLUSTER},
        json.dumps(CLUSTER),
        "\n " + json.dumps({"cluster": CLUSTER}),
        tf.train.ClusterSpec(CLUSTER),
        tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(CLUSTER)),
        OpenCluster(),
    ],
    ids=["dict", "tf_config", "json", "json_tf_config", "spec", "resolver", "cluster"],
)
def test_the_same_cluster_from_every_source(source):
    resolver = cluster_resolver(source)
    assert isinstance(resolver, tf.distribute.cluster_resolver.SimpleClusterResolver)
    assert resolver.cluster_spec().as_dict() == CLUSTER
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (None, None, "grpc")


def test_a_whole_tf_config_sets_the_task():
    resolver = cluster_resolver(TF_CONFIG)
    assert set(resolver.cluster_spec().jobs) == {"worker", "ps", "chief"}
    assert (resolver.task_type, resolver.task_id) == ("ps", 1)
    assert describe_cluster(TF_CONFIG).evaluator == ("10.0.0.5:2222",)


@pytest.mark.parametrize("of", [str, lambda path: path], ids=["str", "path"])
def test_a_file(tmp_path, of):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(TF_CONFIG))
    assert cluster_resolver(of(path)).task_type == "ps"


def test_an_argument_comes_before_the_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}}))
    assert spec_of(None) == {"worker": ["a:1"], "ps": ["b:1"]}
    assert spec_of(CLUSTER) == CLUSTER


@pytest.mark.parametrize("empty", [None, "", "  "])
def test_nothing_found_suggests_a_local_cluster(monkeypatch, empty):
    if empty is not None:
        monkeypatch.setenv("TF_CONFIG", empty)
    with pytest.raises(ClusterConfigError, match=r"Received: neither\. .*tfps\.LocalCluster"):
        cluster_resolver()


def test_a_resolver_keeps_its_task_and_protocol():
    spec = tf.train.ClusterSpec(CLUSTER)
    given = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="worker", task_id=0, rpc_layer="grpc+loas"
    )
    resolver = cluster_resolver(given)
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 0, "grpc+loas")


def test_a_resolver_may_speak_for_a_chief_outside_of_its_cluster():
    spec = tf.train.ClusterSpec(CLUSTER)
    given = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="chief", task_id=0)
    assert cluster_resolver(given).task_type is None


def test_a_resolver_of_ours_can_be_passed_again():
    assert spec_of(cluster_resolver(TF_CONFIG)) == spec_of(TF_CONFIG)


def test_a_local_cluster():
    with LocalCluster(workers=1, ps=1) as cluster:
        assert spec_of(cluster) == cluster.cluster_spec


@pytest.mark.parametrize(
    ("text", "rule", "received"),
    [
        ("{'worker': []}", "must be JSON", "{'worker'"),
        ('{"worker": ["a:1"', "must be JSON", "a:1"),
        ("[" * 100_000, "must be JSON", "[[["),
        ('["a:1"]', "must be a JSON object", "a:1"),
        ('"a:1"', "must be a JSON object", "a:1"),
        ("{" + " " * 1_000_000 + "}", "at most 1,000,000 characters", "more than that"),
        ("no/such/file.json", "JSON text or by the path", "no/such/file.json"),
        ("__import__('os')", "JSON text or by the path", "__import__"),
        (os.devnull, "JSON text or by the path", "no file"),
        (7, "must be described by a dict", "7, a int"),
    ],
)
def test_text_that_describes_nothing(text, rule, received):
    with pytest.raises(ClusterConfigError) as caught:
        cluster_resolver(text)
    (fault,) = caught.value.faults
    said_rule, rest = fault.split(" Received: ")
    assert rule in said_rule
    assert received in rest
    assert rest.count(". ") >= 1  # what to do comes last


@pytest.mark.parametrize("content", [b"\xff\xfe{", b"{" + b" " * 1_000_000 + b"}"], ids=["binary", "large"])
def test_a_file_that_describes_nothing(tmp_path, content):
    path = tmp_path / "cluster.json"
    path.write_bytes(content)
    with pytest.raises(ClusterConfigError, match=r"UTF-8|1,000,000"):
        cluster_resolver(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ClusterConfigError, match="no file"):
        cluster_resolver(pipe)


def test_a_fault_says_where_the_description_comes_from(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(ClusterConfigError) as caught:
        cluster_resolver()
    assert caught.value.__notes__ == ["The description was read from the environment variable TF_CONFIG."]
