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
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_file(tmp_path, of, encoding):
    path = tmp_path / "cl\u00fcster {1}.json"
    path.write_text(json.dumps(TF_CONFIG), encoding=encoding)
    assert cluster_resolver(of(path)).task_type == "ps"


def test_a_file_with_the_cluster_alone(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(CLUSTER))
    assert spec_of(path) == CLUSTER


@pytest.mark.parametrize(
    ("task", "task_type", "task_id"),
    [
        ({"type": "worker", "index": "1"}, "worker", 1),
        ({"type": "ps", "index": 0}, "ps", 0),
        ({"type": "master", "index": "0"}, "chief", 0),
        ({"type": "evaluator", "index": 0}, "evaluator", 0),
        (None, "chief", 0),
    ],
)
def test_what_task_this_is(task, task_type, task_id):
    cluster = {"master": ["m:1"], "worker": ["a:1", "b:1"], "ps": ["c:1"], "evaluator": ["e:1"]}
    resolver = cluster_resolver({"cluster": cluster, "task": task})
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (task_type, task_id, "grpc")
    assert resolver.cluster_spec().as_dict() == {"chief": ["m:1"], "worker": ["a:1", "b:1"], "ps": ["c:1"]}


def test_an_argument_comes_before_the_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}}))
    assert spec_of(None) == {"worker": ["a:1"], "ps": ["b:1"]}
    assert spec_of(CLUSTER) == CLUSTER


@pytest.mark.parametrize(
    ("text", "received"),
    [
        (None, "neither"),
        ("", "neither"),
        ("  \n", "neither"),
        ("{}", "no jobs at all"),
        ('{"cluster": {}}', "no jobs at all"),
        ('{"cluster": {}, "environment": "cloud", "task": {}}', "no jobs at all"),
    ],
)
@pytest.mark.parametrize("make", [lambda: None, tf.distribute.cluster_resolver.TFConfigClusterResolver])
def test_nothing_found_suggests_a_local_cluster(monkeypatch, text, received, make):
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ClusterConfigError, match=rf"1 fault:\n.*Received: {received}\. .*tfps\.LocalCluster"):
        cluster_resolver(make())


def test_tensorflows_resolver_of_the_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({**TF_CONFIG, "rpc_layer": "grpc+loas"}))
    resolver = cluster_resolver(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    assert resolver.cluster_spec().as_dict() == {**CLUSTER, "chief": ["10.0.0.4:2222"]}
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("ps", 1, "grpc+loas")


@pytest.mark.parametrize("text", ["not json", '{"cluster": {"ps_hosts": ["a"]}, "task": {"type": "ps", "index": "x"}}'])
def test_tensorflows_resolver_of_a_faulty_environment(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ClusterConfigError) as directly:
        cluster_resolver()
    with pytest.raises(ClusterConfigError) as through_resolver:
        cluster_resolver(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    assert through_resolver.value.faults == directly.value.faults


def test_a_resolver_of_several():
    parts = [
        tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({job: CLUSTER[job]}))
        for job in CLUSTER
    ]
    assert spec_of(tf.distribute.cluster_resolver.UnionResolver(*parts)) == CLUSTER


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
        ('{"a":' * 100_000, "must be JSON", "{"),
        ('{"worker": ' + "[" * 500 + "]" * 500 + ', "ps": ["p:1"]}', "task:0 must be", "[[["),
        ('{"task": {"index": ' + "9" * 5000 + "}}", "must be JSON", "999"),
        ("null", "JSON text or by the path", "'null'"),
        ("", "JSON text or by the path", "''"),
        ("a\0b", "JSON text or by the path", r"'a\x00b'"),
        ("worker: " + "x" * 5000, "JSON text or by the path", "'worker: xxx"),
        (os.curdir, "JSON text or by the path", "no file"),
        ('["a:1"]', "must be a JSON object", "a:1"),
        ('"a:1"', "must be a JSON object", "a:1"),
        ("{" + " " * 1_000_000 + "}", "at most 1,000,000 characters", "more than that"),
        ("no/such/file.json", "JSON text or by the path", "no/such/file.json"),
        ("__import__('os')", "JSON text or by the path", "__import__"),
        (os.devnull, "JSON text or by the path", "no file"),
        (7, "must be described by a dict", "7 of type int"),
        (b"{}", "must be described by a dict", "b'{}' of type bytes"),
        ([], "must be described by a dict", "[] of type list"),
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
    monkeypatch.setenv("TF_CONFIG", json.dumps({"worker": ["a:1"]}))
    with pytest.raises(ClusterConfigError) as caught:
        cluster_resolver()
    assert caught.value.__notes__ == ["The description was read from the environment variable TF_CONFIG."]
