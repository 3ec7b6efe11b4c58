"""Where a cluster's description comes from: any source enters, a `ClusterDescription` or a resolver leaves.

What a file or the environment says is data: it is bounded, parsed as JSON and never evaluated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol, runtime_checkable

import tensorflow as tf

from tfps.cluster.config import ClusterDescription, Faults, parse_cluster
from tfps.errors import ClusterConfigError

_MAX_CHARACTERS = 1_000_000


@runtime_checkable
class RunningCluster(Protocol):
    """A cluster that this process started, such as a `LocalCluster`."""

    @property
    def cluster_spec(self) -> dict[str, list[str]]:
        """The addresses by job."""

    @property
    def closed(self) -> bool:
        """Whether its tasks are gone."""


def cluster_resolver(source: Any = None) -> tf.distribute.cluster_resolver.SimpleClusterResolver:
    """Make the resolver that tells TensorFlow's strategies where the tasks are.

    `master` becomes `chief`, an `evaluator` stays out of the training cluster, and indices may be strings, so
    that the descriptions of SageMaker, Kubeflow and Vertex AI work as they come.

    Args:
        source: One of these:

            - a dict, `{"worker": ["host:port", ...], "ps": [...]}`, optionally with `chief` and `evaluator`;
            - a whole `TF_CONFIG` dict, `{"cluster": {...}, "task": {"type": ..., "index": ...}}`;
            - the JSON text of either, or the path of a JSON file with it (at most a million characters);
            - a `tf.train.ClusterSpec`, another `ClusterResolver`, or a `tfps.LocalCluster`;
            - None: the environment variable `TF_CONFIG`.

    Returns:
        A `SimpleClusterResolver` with task type, task id and rpc layer set. Task type and id are None for a
        coordinator that the cluster does not list.

    Raises:
        ClusterConfigError: Nothing describes the cluster, or what does breaks a rule; lists every fault.

    Example:
        >>> resolver = cluster_resolver({"worker": ["localhost:2222"], "ps": ["localhost:2223"]})
        >>> resolver.cluster_spec().job_tasks("worker")
        ['localhost:2222']
    """
    description = describe_cluster(source)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(description.jobs),
        task_type=description.task_type,
        task_id=description.task_id,
        rpc_layer=description.rpc_layer,
    )


def describe_cluster(source: Any = None) -> ClusterDescription:
    """Read the source of a cluster, its evaluators included.

    Args:
        source: Whatever `cluster_resolver` takes.

    Returns:
        The checked description.

    Raises:
        ClusterConfigError: Nothing describes the cluster, or what does breaks a rule; lists every fault.

    Example:
        >>> describe_cluster({"worker": ["a:1"], "ps": ["b:1"], "evaluator": ["c:1"]}).evaluator
        ('c:1',)
    """
    if source is None:
        return _from_environment()
    if isinstance(source, Mapping):
        return parse_cluster(source)
    if isinstance(source, str) and source.lstrip().startswith(("{", "[", '"')):
        return _from_json(source, "the text")
    if isinstance(source, (str, os.PathLike)):
        return _from_file(source)
    if isinstance(source, tf.train.ClusterSpec):
        return parse_cluster({"cluster": source.as_dict()})
    if isinstance(source, tf.distribute.cluster_resolver.ClusterResolver):
        return _from_resolver(source)
    if isinstance(source, RunningCluster) and not isinstance(source, type):
        return parse_cluster({"cluster": source.cluster_spec})
    _refuse(
        "A cluster must be described by a dict, JSON text, the path of a JSON file, a tf.train.ClusterSpec, "
        "a ClusterResolver, a LocalCluster or None",
        f"{source!r} of type {type(source).__name__}",
        'Write for example {"worker": ["host:2222"], "ps": ["host:2223"]}',
    )


def _from_environment() -> ClusterDescription:
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        _refuse(
            "A cluster must be described by an argument or by the environment variable TF_CONFIG",
            "neither",
            "Describe one, or start one on this machine with tfps.LocalCluster()",
        )
    return _from_json(text, "the environment variable TF_CONFIG")


def _from_file(path: str | os.PathLike[str]) -> ClusterDescription:
    name = os.fspath(path)
    # Opening anything but a regular file, a pipe for one, may block for ever.
    if not os.path.isfile(name):
        _refuse(
            "A cluster must be described by JSON text or by the path of a JSON file",
            f"{name[:200]!r}, where there is no file",
            "Correct the path",
        )
    try:
        with open(name, encoding="utf-8-sig") as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        _refuse("The file must be readable UTF-8 text", f"{name!r} ({error})", "Correct the file")
    return _from_json(text, f"the file {name!r}")


def _from_json(text: str, where: str) -> ClusterDescription:
    example = 'Write {"cluster": {"worker": ["host:port"], "ps": ["host:port"]}}, with double quotes'
    if len(text) > _MAX_CHARACTERS:
        _refuse(
            f"A cluster's description must have at most {_MAX_CHARACTERS:,} characters",
            f"more than that in {where}",
            "Keep the addresses only",
        )
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(f"What {where} says must be JSON", f"{text[:80]!r} ({error})", example)
    if not isinstance(config, dict):
        _refuse(f"What {where} says must be a JSON object", f"{text[:80]!r}", example)
    try:
        return parse_cluster(config)
    except ClusterConfigError as error:
        error.add_note(f"The description was read from {where}.")
        raise


def _from_resolver(resolver: Any) -> ClusterDescription:
    if isinstance(resolver, tf.distribute.cluster_resolver.TFConfigClusterResolver):
        _from_environment()  # it parses the same variable, and what is wrong there it does not explain
    cluster = resolver.cluster_spec().as_dict()
    config = {"cluster": cluster, "rpc_layer": getattr(resolver, "rpc_layer", None)}
    # A resolver may speak for a chief that its cluster does not list; that is a coordinator outside of it.
    if resolver.task_type and (resolver.task_type != "chief" or "chief" in cluster):
        config["task"] = {"type": resolver.task_type, "index": resolver.task_id}
    return parse_cluster(config)


def _refuse(rule: str, received: str, remedy: str) -> NoReturn:
    faults = Faults()
    faults.add(rule, received, remedy)
    raise ClusterConfigError(faults)
