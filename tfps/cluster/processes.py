"""One process per task of a `LocalCluster`, as the program that started them sees them.

A cluster's description enters; running server processes, their exit codes and their output leave. The
processes belong to a launcher (`tfps.cluster.launcher`) that this module starts and talks to.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfps.cluster.launcher import Messages
from tfps.errors import ClusterTimeoutError, TaskFailedError

START_TIMEOUT = 60.0  # seconds within which tasks have to be up, and within which the launcher has to answer
_LAUNCH = "from tfps.cluster.launcher import launch; launch()"
_TAIL_LINES = 25


class TaskProcesses:
    """The processes of a cluster's tasks; none runs until `start`.

    Args:
        cluster_spec: Lists of `"host:port"` strings by task type.
    """

    def __init__(self, cluster_spec: Mapping[str, Sequence[str]]) -> None:
        self._cluster_spec = cluster_spec
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._request = 0
        self._directory = Path(tempfile.mkdtemp(prefix="tfps-"))
        try:
            self._launch()
        except BaseException:  # Ctrl-C comes at any moment, too.
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def start(self, *tasks: tuple[str, int]) -> None:
        """Start tasks that are not running and return when each of them accepts connections.

        Args:
            *tasks: Pairs of task type and index.

        Raises:
            TaskFailedError: One ended instead.
            ClusterTimeoutError: One was not up in time.
        """
        deadline = time.monotonic() + START_TIMEOUT
        for task_type, task_id in tasks:
            ready = self._ready_file(task_type, task_id)
            ready.unlink(missing_ok=True)
            self._ask(
                deadline,
                do="start",
                task=_name(task_type, task_id),
                task_type=task_type,
                task_id=task_id,
                cluster_spec=self._cluster_spec,
                log=str(self._log(_name(task_type, task_id))),
                ready=str(ready),
            )
        while not all(self._ready_file(*task).exists() for task in tasks):
            exit_codes = self._ask(deadline, do="look")
            for task in tasks:
                if (exit_code := exit_codes[_name(*task)]) is not None:
                    raise self.failure(*task, exit_code)
            time.sleep(0.02)

    def kill(self, task_type: str, task_id: int) -> None:
        """Kill a task with SIGKILL, if it runs, and return when it is gone."""
        self._ask(do="kill", task=_name(task_type, task_id))

    def exit_code(self, task_type: str, task_id: int) -> int | None:
        """The exit code of a task, the negative number of the signal that ended it, or None while it runs."""
        return self._ask(do="look")[_name(task_type, task_id)]

    def output(self, task_type: str, task_id: int) -> str:
        """All that a task wrote to stdout and stderr since its first start."""
        return _read(self._log(_name(task_type, task_id)))

    def failure(self, task_type: str, task_id: int, exit_code: int) -> TaskFailedError:
        """The error that says how a task ended, with the end of its output."""
        return TaskFailedError(
            f"A task of a LocalCluster must run until it is told to stop. Received: {task_type} {task_id} "
            f"({self._cluster_spec[task_type][task_id]}) ended with {describe_exit(exit_code)}. The end of "
            f"its output, below, should say why; `restart({task_type!r}, {task_id})` starts it again.\n"
            + _tail(self.output(task_type, task_id))
        )

    def close(self) -> None:
        """End every process and remove their output."""
        if os.getpid() != self._owner:
            return  # A fork of the program holds a copy of this object, and owns none of the processes.
        self._messages.close()
        try:
            self._launcher.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        self._messages = Messages(ours)
        with theirs, self._log("launcher").open("wb") as log:
            self._launcher = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _LAUNCH,
                    str(theirs.fileno()),
                    str(self._owner),
                    str(self._directory),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                # Ctrl-C goes to all processes of a terminal or notebook; what it ends is decided here alone.
                start_new_session=True,
                env={
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    **os.environ,
                    # The launcher imports from where this process does.
                    "PYTHONPATH": os.pathsep.join(str(entry or os.getcwd()) for entry in sys.path),
                },
            )

    def _ask(self, deadline: float | None = None, **order: Any) -> dict[str, int | None]:
        """Give the launcher an order; return the exit codes of all tasks by name, None for those that run."""
        deadline = time.monotonic() + START_TIMEOUT if deadline is None else deadline
        with self._lock:
            self._request += 1
            try:
                self._messages.send({"request": self._request, **order})
                answer: dict[str, Any] = {}
                # A call that was interrupted may have left its answer behind.
                while answer.get("request") != self._request:
                    answer = self._messages.receive(deadline - time.monotonic())
            except TimeoutError:
                raise self._too_late() from None
            except (EOFError, OSError):
                raise TaskFailedError(
                    "The launcher of a LocalCluster must run until the cluster is closed. Received: it ended "
                    f"with {describe_exit(self._launcher.wait())}, and every task with it. Close this "
                    f"cluster and make another.\n{_tail(_read(self._log('launcher')))}"
                ) from None
        exit_codes: dict[str, int | None] = answer["exit_codes"]
        return exit_codes

    def _too_late(self) -> ClusterTimeoutError:
        tasks = [(kind, index) for kind, addresses in self._cluster_spec.items() for index in range(len(addresses))]
        up = [f"{kind} {index}" for kind, index in tasks if self._ready_file(kind, index).exists()]
        down = [f"{kind} {index}" for kind, index in tasks if not self._ready_file(kind, index).exists()]
        return ClusterTimeoutError(
            f"Every task of a LocalCluster must accept connections within {START_TIMEOUT:g} s. Received: "
            f"up: {', '.join(up) or 'none'}; not up: {', '.join(down) or 'none'}. Start fewer tasks, or make "
            "room on the machine."
        )

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _ready_file(self, task_type: str, task_id: int) -> Path:
        return self._directory / f"{_name(task_type, task_id)}.ready"


def describe_exit(exit_code: int) -> str:
    """Say how a process ended: `exit code 1`, `exit code -9 (SIGKILL)`."""
    return f"exit code {exit_code}" + (f" ({signal.Signals(-exit_code).name})" if exit_code < 0 else "")


def _name(task_type: str, task_id: int) -> str:
    return f"{task_type}-{task_id}"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _tail(output: str) -> str:
    return "\n".join(output.splitlines()[-_TAIL_LINES:]) or "(It wrote nothing.)"
