"""The rules of a cluster's description: a dict enters, a checked `ClusterDescription` leaves.

Whatever wrote the description (a person, SageMaker, Kubeflow, Vertex AI), TensorFlow gets one normal form.
Every fault is collected before anything is raised: starting a cluster again for each takes too long.
"""

from __future__ import annotations

import difflib
import ipaddress
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfps.errors import ClusterConfigError

_JOBS = ("chief", "worker", "ps", "evaluator")
# Older launchers call the chief so; it is no fault.
_SYNONYMS = {"master": "chief"}
# What people write by mistake and the job they mean.
_LIKELY_JOBS = {job: job for job in _JOBS} | {
    "ps_hosts": "ps",
    "parameter_server": "ps",
    "parameter_servers": "ps",
    "worker_hosts": "worker",
    "chief_hosts": "chief",
    "coordinator": "chief",
}
_TASK_KEYS = {
    "type": ("job", "job_name", "task_type", "name", "role"),
    "index": ("task", "id", "task_id", "task_index", "idx", "rank"),
}
_CONFIG_KEYS = ("cluster", "task", "sparseCluster", "environment", "rpc_layer")


@dataclass(frozen=True)
class ClusterDescription:
    """A checked description of a cluster, and of this process's task in it.

    Attributes:
        jobs: The training cluster's addresses (`"host:port"`) by job: `worker`, `ps`, and `chief` if given.
        evaluator: The evaluators' addresses; they are no part of the training cluster.
        task_type: This process's job, `"evaluator"` included; None for a coordinator outside of the cluster.
        task_id: This process's index in its job; None with `task_type`.
        rpc_layer: The protocol between the tasks.
    """

    jobs: dict[str, list[str]]
    evaluator: tuple[str, ...]
    task_type: str | None
    task_id: int | None
    rpc_layer: str


class Faults(list[str]):
    """The faults found so far, each in the form of every error of tfps."""

    def add(self, rule: str, received: str, remedy: str) -> None:
        """Note that a rule is broken; `received` is shown as it is, cut where nobody would read on."""
        if len(received) > 300:
            received = received[:300] + "..."
        self.append(f"{rule}. Received: {received}. {remedy}{'' if remedy.endswith('?') else '.'}")

    def raise_any(self) -> None:
        """Raise all faults as one `ClusterConfigError`, if there are any."""
        if self:
            raise ClusterConfigError(self)


def parse_cluster(config: Mapping[Any, Any]) -> ClusterDescription:
    """Check and normalise a cluster dict or a whole `TF_CONFIG` dict.

    Args:
        config: `{"worker": [...], "ps": [...]}`, optionally with `chief` and `evaluator`; or
            `{"cluster": {...}, "task": {...}}`.

    Returns:
        The description in its normal form.

    Raises:
        ClusterConfigError: The description breaks a rule; all faults are listed.

    Example:
        >>> parse_cluster({"worker": {"0": "a:2222"}, "ps": ["b:2222"], "master": ["c:2222"]}).jobs
        {'worker': ['a:2222'], 'ps': ['b:2222'], 'chief': ['c:2222']}
    """
    faults = Faults()
    cluster = _find_cluster(config, faults)
    jobs = {} if cluster is None else _read_jobs(cluster, faults)
    task = _find_task(config, faults) if cluster is not config else None
    task_type, task_id = _read_task(task, jobs, faults)
    rpc_layer = config.get("rpc_layer") or "grpc"
    if not isinstance(rpc_layer, str):
        faults.add('"rpc_layer" must be a string', repr(rpc_layer), 'Leave it out for "grpc"')
    faults.raise_any()
    evaluator = tuple(jobs.pop("evaluator", ()))
    _warn_of_loopback(jobs)
    return ClusterDescription(jobs, evaluator, task_type, task_id, rpc_layer)


def split_address(address: str) -> tuple[str, int]:
    """Host (lower case, without brackets) and port of a checked address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]").lower(), int(port)


def task_name(job: str, index: int) -> str:
    """A task's name as TensorFlow's own messages write it, `/job:ps/task:1`."""
    return f"/job:{job}/task:{index}"


def _find_cluster(config: Mapping[Any, Any], faults: Faults) -> Mapping[Any, Any] | None:
    """The part that maps jobs to addresses: the whole of a cluster dict, one key of a TF_CONFIG."""
    cluster: Any = config
    if "cluster" in config:
        cluster = config["cluster"]
    elif misspelt := _misspelt("cluster", config):
        cluster = config[misspelt]
        faults.add('A TF_CONFIG must have the key "cluster"', f"the key {misspelt!r}", 'Did you mean "cluster"?')
    elif "sparseCluster" in config:
        faults.add(
            'A TF_CONFIG must have the key "cluster", which lists every task',
            f"only sparseCluster, {config['sparseCluster']!r}",
            "Kubeflow writes sparseCluster when workers may come and go, with only the tasks this one talks "
            "to. Turn enableDynamicWorker off in the TFJob, or pass the whole cluster",
        )
        return None
    elif any(key in config for key in _CONFIG_KEYS):
        faults.add(
            'A TF_CONFIG must have the key "cluster"', f"the keys {list(config)}", 'Put the jobs under "cluster"'
        )
        return None
    if not isinstance(cluster, Mapping):
        faults.add('"cluster" must be an object of jobs and their addresses', repr(cluster), _example("worker"))
        return None
    return cluster


def _find_task(config: Mapping[Any, Any], faults: Faults) -> Any:
    """What a TF_CONFIG says of this process. A misspelt key must not make a coordinator of a worker."""
    if "task" in config:
        return config["task"]
    if misspelt := _misspelt("task", config):
        faults.add('A TF_CONFIG must have its task under the key "task"', repr(misspelt), 'Did you mean "task"?')
    return None


def _misspelt(key: str, config: Mapping[Any, Any]) -> str | None:
    """The key of a TF_CONFIG that was likely meant to be `key`."""
    others = [other for other in config if isinstance(other, str) and other not in _CONFIG_KEYS]
    return next(iter(difflib.get_close_matches(key, others, n=1, cutoff=0.7)), None)


def _read_jobs(cluster: Mapping[Any, Any], faults: Faults) -> dict[str, list[str]]:
    """The addresses of every job, under its normal name; faulty ones are left in for what is checked next."""
    if not cluster:
        faults.add(
            "The cluster must have a worker and a ps",
            "no jobs at all",
            f"{_example('worker')} and likewise ps, or start a cluster on this machine with tfps.LocalCluster()",
        )
        return {}
    jobs: dict[str, list[str]] = {}
    for key, tasks in cluster.items():
        job = _read_job_name(key, faults)
        if job is not None:
            jobs.setdefault(job, _read_tasks(job, tasks, faults))
    if "chief" in cluster and "master" in cluster:
        faults.add("The chief must be given once", "both 'chief' and 'master'", "Keep one of them")
    for job in ("worker", "ps"):
        if job not in jobs:
            faults.add(f"The cluster must have a {job}", f"the jobs {list(cluster)}", _example(job))
    if len(jobs.get("chief", ())) > 1:
        faults.add("There must be one chief at most", f"{jobs['chief']}", "Keep the first address only")
    _find_duplicates(jobs, faults)
    return jobs


def _read_job_name(key: Any, faults: Faults) -> str | None:
    """The job that a key names. A misspelt one is a fault, and is then taken for what it likely means."""
    job = _SYNONYMS.get(key, key)
    if job in _JOBS:
        return str(job)
    meant = _likely_job(key)
    faults.add(
        f"A job must be one of {', '.join(map(repr, _JOBS))}",
        repr(key),
        f"Did you mean {meant!r}?" if meant else "Rename it or take it out",
    )
    return meant


def _likely_job(misspelt: Any) -> str | None:
    close = difflib.get_close_matches(str(misspelt).lower(), _LIKELY_JOBS, n=1)
    return _LIKELY_JOBS[close[0]] if close else None


def _read_tasks(job: str, tasks: Any, faults: Faults) -> list[str]:
    """The addresses of one job, from a list or from a dict with the indices as keys."""
    if isinstance(tasks, Mapping):
        try:
            by_index = {int(index): address for index, address in tasks.items()}
        except (TypeError, ValueError, OverflowError):
            by_index = {}
        if sorted(by_index) != list(range(len(tasks))):
            faults.add(
                f"The indices of the job {job!r} must be 0, 1, 2, ... without a gap",
                f"the indices {list(tasks)}",
                "List every task, because TensorFlow finds the others by counting",
            )
            return []
        tasks = [by_index[index] for index in sorted(by_index)]
    if isinstance(tasks, (str, bytes)) or not isinstance(tasks, Sequence):
        faults.add(f"The tasks of the job {job!r} must be a list of addresses", repr(tasks), _example(job))
        return []
    if not tasks:
        faults.add(f"The job {job!r} must have at least one address", "[]", _example(job))
    for index, address in enumerate(tasks):
        broken = _broken_rule(address)
        if broken:
            faults.add(f"The address of {task_name(job, index)} {broken[0]}", repr(address), broken[1])
    return list(tasks)


def _broken_rule(address: Any) -> tuple[str, str] | None:
    """The rule that an address breaks and the remedy, or None."""
    form = 'must be "host:port"'
    if not isinstance(address, str):
        return form, 'Write a string such as "10.0.0.1:2222"'
    if "," in address:
        return form, "Make each address a string of its own"
    if "/" in address or " " in address or not address.isprintable():
        return form, "Leave out the scheme, the path, spaces and invisible characters"
    host, colon, port = address.rpartition(":")
    if "[" in address or "]" in address or address.count(":") > 1:
        if not (host.startswith("[") and host.endswith("]") and isinstance(_ip(host[1:-1]), ipaddress.IPv6Address)):
            return form, 'Write an IPv6 address in brackets and a port, such as "[::1]:2222"'
    elif not colon:
        return form, f'Add the port, such as "{address[:253] or "host"}:2222"'
    if not host or not (port.isascii() and port.isdecimal()):
        return form, 'Write both parts, such as "10.0.0.1:2222"'
    if len(port) > 5 or not 1 <= int(port) <= 65535:
        return "must have a port from 1 to 65535", "Give the port on which the task listens"
    return None


def _is_loopback(host: str) -> bool:
    """Whether a host of an address is one that each machine takes for itself."""
    ip = _ip(host)
    return host == "localhost" if ip is None else ip.is_loopback or ip.is_unspecified


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _find_duplicates(jobs: Mapping[str, list[str]], faults: Faults) -> None:
    seen: dict[tuple[str, int], str] = {}
    for job, addresses in jobs.items():
        for index, address in enumerate(addresses):
            if _broken_rule(address):
                continue
            host, port = split_address(address)
            name = task_name(job, index)
            first = seen.setdefault(("localhost" if _is_loopback(host) else host, port), name)
            if first != name:
                faults.add(
                    "Every task must have an address of its own",
                    f"{address!r} for {first} and for {name}",
                    "Give one of them another host or port",
                )


def _read_task(task: Any, jobs: Mapping[str, list[str]], faults: Faults) -> tuple[str, int] | tuple[None, None]:
    """This process's job and index; without a task it is the coordinator, in the cluster or outside of it."""
    if task is None or task == {}:
        return ("chief", 0) if "chief" in jobs else (None, None)
    if not isinstance(task, Mapping):
        faults.add('"task" must be an object', repr(task), 'Write "task": {"type": "worker", "index": 0}')
        return None, None
    for key, likely in _TASK_KEYS.items():
        if key not in task:
            others = [other for other in task if other not in _TASK_KEYS]
            meant = [other for other in others if str(other).lower() in (key, *likely)]
            remedy = f"Did you mean {key!r} by {meant[0]!r}?" if meant else f"Add {key!r}"
            faults.add(f'"task" must have the key "{key}"', repr(dict(task)), remedy)
    job = _read_task_type(task["type"], jobs, faults) if "type" in task else None
    index = _read_task_index(task["index"], job, jobs, faults) if "index" in task else None
    return (None, None) if job is None or index is None else (job, index)


def _read_task_type(given: Any, jobs: Mapping[str, list[str]], faults: Faults) -> str | None:
    job = _SYNONYMS.get(given, given) if isinstance(given, str) else None
    # An evaluator may be listed nowhere, and without any job the missing ones are the fault.
    if job in jobs or job == "evaluator" or (job in _JOBS and not jobs):
        return job
    meant = _likely_job(given)
    remedy = f"Did you mean {meant!r}?" if meant else "Name one of the jobs"
    if job in _JOBS:
        remedy = f'Add "{job}": ["host:port"] to the cluster'
    faults.add("The task's type must be a job of the cluster", f"{given!r}, with the jobs {list(jobs)}", remedy)
    return None


def _read_task_index(given: Any, job: str | None, jobs: Mapping[str, list[str]], faults: Faults) -> int | None:
    index = given
    if isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) < 10:
        index = int(given)
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        faults.add("The task's index must be an integer of at least 0", repr(given), "Count from 0 in each job")
        return None
    tasks = jobs.get(job, []) if job else []
    if tasks and index >= len(tasks):
        faults.add(
            "The task's index must be below the number of its job's tasks",
            f"index {index}, with {len(tasks)} in the job {job!r}",
            "Count from 0, or list the missing task",
        )
    return index


def _warn_of_loopback(jobs: Mapping[str, list[str]]) -> None:
    """Warn of addresses that only tasks on one machine can reach, in a cluster that seems to have several.

    It is a warning because one machine may go by two names.
    """
    here: list[str] = []
    elsewhere: list[str] = []
    for job, addresses in jobs.items():
        for index, address in enumerate(addresses):
            group = here if _is_loopback(split_address(address)[0]) else elsewhere
            group.append(f"{task_name(job, index)} at {address}")
    if here and elsewhere:
        message = Faults()
        message.add(
            "An address must be one that the tasks on other hosts can reach",
            f"{', '.join(here)}, while other hosts have {', '.join(elsewhere)}",
            "Write the host's name on the network instead",
        )
        warnings.warn(message[0], stacklevel=2)


def _example(job: str) -> str:
    return f'Write "{job}": ["host:port", ...]'
