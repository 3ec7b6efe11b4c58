"""Waiting for the tasks of a cluster: their addresses enter; it returns when all of them answer, or raises.

TensorFlow itself waits without a word and without an end for a task that is not up.
"""

from __future__ import annotations

import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import NoReturn

from tfps.cluster.config import split_address, task_name
from tfps.errors import ClusterTimeoutError

_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_QUIET_SECONDS = 1.0
_SECONDS_BETWEEN_LINES = 10.0


def wait_for_tasks(jobs: Mapping[str, list[str]], timeout: float, option: str = "connect_timeout") -> None:
    """Wait until every task accepts a connection, and show on standard error what is still missing.

    A terminal gets one line that is rewritten each second, anything else a line every ten seconds, and nothing
    is shown where all tasks answer within a second.

    Args:
        jobs: Addresses (`"host:port"`) by job.
        timeout: Seconds to wait at most.
        option: The name of the option that sets `timeout`, for the error's remedy.

    Raises:
        ClusterTimeoutError: Some task did not answer in time; says which did and which did not, and why.

    Example:
        >>> with socket.create_server(("localhost", 0)) as task:
        ...     wait_for_tasks({"ps": [f"localhost:{task.getsockname()[1]}"]}, timeout=5)
    """
    start = time.monotonic()
    probes = [_Probe(job, index, address) for job in jobs for index, address in enumerate(jobs[job])]
    display = _Display(len(probes))
    try:
        for probe in probes:
            probe.start()
        while waiting := [probe for probe in probes if not probe.answered.is_set()]:
            elapsed = time.monotonic() - start
            if elapsed >= timeout:
                display.end()
                _give_up(probes, timeout, option)
            if elapsed >= _QUIET_SECONDS:
                display.show(waiting, timeout - elapsed)
            # One task is as good as another to wait for, since all of them have to answer.
            waiting[0].answered.wait(min(_QUIET_SECONDS, timeout - elapsed))
        display.end(f"All {len(probes)} tasks answered after {time.monotonic() - start:.0f} s.")
    finally:
        for probe in probes:
            probe.stopped.set()


class _Probe(threading.Thread):
    """Tries one task again and again until it answers.

    Each task has a thread of its own, because looking a name up may take longer than any deadline.
    """

    def __init__(self, job: str, index: int, address: str):
        super().__init__(name=f"tfps-wait-{job}-{index}", daemon=True)
        self.task = f"{task_name(job, index)} at {address}"
        self.problem = "no answer yet"
        self.answered = threading.Event()
        self.stopped = threading.Event()
        self._address = split_address(address)

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                socket.create_connection(self._address, timeout=_CONNECT_SECONDS).close()
            except (socket.gaierror, UnicodeError):
                self.problem = f"the name {self._address[0]!r} does not resolve"
            except OSError as error:
                self.problem = (error.strerror or "timed out").lower()
            else:
                self.answered.set()
                return
            self.stopped.wait(_RETRY_SECONDS)


class _Display:
    """Says on standard error what is being waited for."""

    def __init__(self, tasks: int):
        self._tasks = tasks
        self._terminal = sys.stderr.isatty()
        self._next_line = 0.0
        self._shown = False

    def show(self, waiting: Iterable[_Probe], seconds_left: float) -> None:
        names = [probe.task for probe in waiting]
        head = f"Waiting for {len(names)} of {self._tasks} tasks, {seconds_left:.0f} s left"
        text = f"{head}: {', '.join(names)}"
        self._shown = True
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:width]:<{width}}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            print(text, file=sys.stderr, flush=True)

    def end(self, text: str = "") -> None:
        if not self._shown:
            return
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{'':<{width}}\r", end="", file=sys.stderr, flush=True)
        if text:
            print(text, file=sys.stderr, flush=True)


def _give_up(probes: Iterable[_Probe], timeout: float, option: str) -> NoReturn:
    lines = {True: ["answered:"], False: ["did not answer:"]}
    for probe in probes:
        answered = probe.answered.is_set()
        lines[answered].append(f"  {probe.task}" + ("" if answered else f" ({probe.problem})"))
    if len(lines[True]) == 1:
        lines[True].append("  none")
    raise ClusterTimeoutError(
        f"Every worker and ps must answer within {timeout:g} s. Received:\n"
        + "\n".join(lines[False] + lines[True])
        + "\nStart the tasks that are missing, look into their logs, or correct their addresses; "
        f"if they only need longer, raise {option}."
    )
