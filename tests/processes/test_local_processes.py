"""Clusters whose tasks are processes: they train, fail and come back, and never outlive the program (K9)."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

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

AT_ONCE = """
import json
import tensorflow as tf
from tfps.cluster.local import LocalCluster
print("ready", flush=True)
input()
clusters = [LocalCluster(workers=2, ps=2) for _ in range(2)]
specs = [cluster.cluster_spec for cluster in clusters]
print(json.dumps([address for spec in specs for addresses in spec.values() for address in addresses]))
spec = tf.train.ClusterSpec(specs[0])
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0)
step = tf.function(lambda: total.assign_add(1))
for _ in range(50):
    coordinator.schedule(step)
coordinator.join()
print(int(total))
"""

TRAIN = """
import json, os, psutil
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
print(json.dumps(tasks), flush=True)
# After the loss of a worker, TensorFlow's coordinator waits for ever for its own thread when Python ends.
os._exit(0)
"""


@contextlib.contextmanager
def program(code, *arguments, stdin=subprocess.DEVNULL):
    """A Python program that has 60 seconds to live; like a program in a terminal, its own process group."""
    command = [sys.executable, *(arguments or ("-c", code))]
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        limit = threading.Timer(60, running.kill)
        limit.start()
        try:
            yield running
        finally:
            limit.cancel()
            running.kill()


def tasks_of(running):
    """The launcher and the tasks that a program started."""
    return psutil.Process(running.pid).children(recursive=True)


def all_gone(started):
    """Whether all of these processes end within 15 seconds; an orphan's zombie has ended."""
    _, left = psutil.wait_procs(started, timeout=15)
    return not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


def expect(running, *lines):
    for line in lines:
        assert running.stdout.readline() == line + "\n"


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(workers=2, ps=1, processes=True) as cluster:
        yield cluster


def accepts_connections(address):
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_cluster_runs_once_constructed(cluster):
    assert repr(cluster) == "LocalCluster(workers=2, ps=1, processes=True, state='running')"
    spec = cluster.cluster_spec
    assert all(map(accepts_connections, spec["worker"] + spec["ps"]))


def test_a_killed_task_is_gone_and_comes_back_on_its_address(cluster):
    address = cluster.cluster_spec["worker"][1]
    cluster.kill("worker", 1)
    cluster.kill("worker", 1)
    assert not accepts_connections(address)
    assert f"<td>worker 1</td><td>{address}</td><td>killed</td>" in cluster._repr_html_()
    cluster.restart("worker", 1)
    assert accepts_connections(address)
    assert f"<td>worker 1</td><td>{address}</td><td>running</td>" in cluster._repr_html_()


def test_restarting_a_running_task_replaces_its_process(cluster):
    cluster.restart("ps", 0)
    assert accepts_connections(cluster.cluster_spec["ps"][0])
    first, *_, last = [line for line in cluster.logs("ps", 0).splitlines() if line.startswith("ps 0 starts")]
    assert first != last


def test_each_task_has_its_own_log(cluster):
    assert cluster.logs("worker", 0).startswith("worker 0 starts, process ")
    assert "worker 1 starts" not in cluster.logs("worker", 0)


@pytest.mark.parametrize("task", [("chief", 0), ("worker", 2), ("worker", -1), ("ps", "0"), (["ps"], None)])
@pytest.mark.parametrize("method", ["kill", "restart", "logs"])
def test_a_task_that_does_not_exist_is_refused(cluster, method, task):
    with pytest.raises(UnsupportedError, match=rf"`{method}` must name a task .* Received: task_type="):
        getattr(cluster, method)(*task)


def test_a_task_that_dies_early_says_why(cluster):
    port = int(cluster.cluster_spec["worker"][0].split(":")[1])
    cluster.kill("worker", 0)
    with (
        socket.create_server(("", port)),
        pytest.raises(TaskFailedError, match=r"worker 0 .* exit code 1\.") as failure,
    ):
        cluster.restart("worker", 0)
    assert str(failure.value).splitlines()[-1].endswith("UnknownError: Could not start gRPC server")
    assert "<td>ended with exit code 1</td>" in cluster._repr_html_()
    with pytest.raises(TaskFailedError, match=r"worker 0 .* exit code 1\."):
        cluster.kill("worker", 0)
    cluster.restart("worker", 0)
    assert accepts_connections(cluster.cluster_spec["worker"][0])


def test_a_launcher_that_cannot_start_says_why(monkeypatch, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('broken install')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(TaskFailedError, match=r"launcher .* exit code 1, ") as failure:
        LocalCluster(workers=1, ps=1, processes=True)
    assert str(failure.value).endswith("ImportError: broken install")


def test_tasks_that_are_not_up_in_time_are_named_and_ended(monkeypatch):
    monkeypatch.setattr(processes, "START_TIMEOUT", 0.2)
    before = psutil.Process().children()
    with pytest.raises(ClusterTimeoutError, match=r"within 0\.2 s.* up: none; not up: worker 0, ps 0\."):
        LocalCluster(workers=1, ps=1, processes=True)
    assert psutil.Process().children() == before


@pytest.mark.parametrize("end", ["close", pytest.param("forget", marks=pytest.mark.slow)])
def test_nothing_is_left_at_the_end(monkeypatch, tmp_path, end):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    processes_before = psutil.Process().children(recursive=True)
    cluster = LocalCluster(workers=1, ps=1, processes=True)
    assert len(psutil.Process().children(recursive=True)) == len(processes_before) + 3
    if end == "close":
        cluster.close()
        cluster.close()
        with pytest.raises(ClusterClosedError, match="state='closed'"):
            cluster.logs("ps", 0)
    del cluster
    assert psutil.Process().children(recursive=True) == processes_before
    assert not list(tmp_path.iterdir())


def test_a_killed_program_takes_its_tasks_with_it(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # The fork stands for a data loader: it holds a copy of all that the program had open, and lives on.
    code = START + "fork = os.fork()\nif fork: print(fork, flush=True)\ntime.sleep(60)\n"
    with program(code) as running:
        expect(running, "main runs")
        fork = psutil.Process(int(running.stdout.readline()))
        started = [process for process in tasks_of(running) if process != fork]
        assert len(started) == 3
        running.kill()
        assert all_gone(started)
        assert fork.is_running()
        fork.kill()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_ctrl_c_ends_the_tasks():
    with program(START + "print('ready', flush=True)\ntime.sleep(60)\n") as running:
        expect(running, "main runs", "ready")
        started = tasks_of(running)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(timeout=20) == -signal.SIGINT
        assert all_gone(started)


@pytest.mark.slow
def test_ctrl_c_while_the_cluster_starts_ends_the_tasks():
    with program(START) as running:
        expect(running, "main runs")
        while not (started := tasks_of(running)):
            with pytest.raises(subprocess.TimeoutExpired):
                running.wait(timeout=0.05)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(timeout=30) == -signal.SIGINT
        assert all_gone(started)


@pytest.mark.slow
def test_an_exception_ends_the_tasks():
    code = START + "print('ready', flush=True)\ninput()\nraise ValueError('mine')\n"
    with program(code, stdin=subprocess.PIPE) as running:
        expect(running, "main runs", "ready")
        started = tasks_of(running)
        running.communicate("go on\n", timeout=30)
        assert running.returncode == 1
        assert all_gone(started)


@pytest.mark.slow
def test_a_killed_launcher_takes_the_tasks_with_it():
    cluster = LocalCluster(workers=1, ps=1, processes=True)
    launcher = psutil.Process().children()[-1]
    tasks = launcher.children()
    launcher.kill()
    assert all_gone(tasks)
    with pytest.raises(TaskFailedError, match=r"launcher .* exit code -9 \(SIGKILL\)"):
        cluster.restart("ps", 0)
    cluster.close()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["script", "standard input"])
def test_the_main_program_runs_once(tmp_path, source):
    code = START + "print(cluster.logs('worker', 0).count('main runs'))\n"
    script = tmp_path / "script.py"
    script.write_text(code)
    with script.open() as opened:
        arguments = [str(script)] if source == "script" else ["-"]
        with program("", *arguments, stdin=opened) as running:
            output, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert output.splitlines() == ["main runs", "0"]


@pytest.mark.slow
def test_training_goes_on_when_a_worker_is_killed_and_comes_back():
    with program(TRAIN) as running:
        output, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    *counts, tasks = output.splitlines()
    first, second, third = map(int, counts)
    assert first == 100
    # A step that the killed worker had finished but not reported is run again.
    assert 200 <= second <= 203
    assert 300 <= third <= 303
    assert len(json.loads(tasks)) == 5
    assert not any(map(psutil.pid_exists, json.loads(tasks)))


@pytest.mark.slow
def test_clusters_started_at_once_do_not_share_ports():
    with contextlib.ExitStack() as cleanup:
        programs = [cleanup.enter_context(program(AT_ONCE, stdin=subprocess.PIPE)) for _ in range(3)]
        for running in programs:
            expect(running, "ready")
        for running in programs:
            running.stdin.write("go\n")
            running.stdin.flush()
        outputs = [running.communicate(timeout=60)[0] for running in programs]
    addresses = [address for output in outputs for address in json.loads(output.splitlines()[0])]
    assert len(addresses) == len(set(addresses)) == 3 * 2 * 4
    assert [output.splitlines()[1] for output in outputs] == ["50"] * 3
