"""Waiting for the tasks of a cluster: their addresses enter; it returns when all of them answer, or raises.

TensorFlow itself waits without a word and without an end for a task that is not up, and likewise for one that only
accepts connections: a process that was stopped, a proxy with nothing behind it, another program on the port.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

from tfps.cluster.config import split_address, task_name
from tfps.errors import ClusterTimeoutError

_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_QUIET_SECONDS = 1.0
_SECONDS_BETWEEN_LINES = 10.0
# TensorFlow's servers speak gRPC, so HTTP/2: a client says this first, and the server begins with its settings.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_HEADER_BYTES = 9
_SETTINGS = 4
_log = logging.getLogger("tfps")


def wait_for_tasks(jobs: Mapping[str, list[str]], timeout: float) -> None:
    """Wait until every task answers as a TensorFlow server does, and show what is still missing.

    On a terminal standard error gets one line that is rewritten each second. Elsewhere the logger "tfps" gets a
    record every ten seconds, a warning, so that it is seen without any set-up. Nothing is shown where all tasks
    answer within a second.

    Args:
        jobs: Addresses (`"host:port"`) by job.
        timeout: Seconds to wait at most.

    Raises:
        ClusterTimeoutError: Some task did not answer in time; says which did and which did not, and why.

    Example:
        >>> wait_for_tasks({"ps": ["localhost:1"]}, timeout=0.1)
        Traceback (most recent call last):
        ...
        tfps.errors.ClusterTimeoutError: Every worker and ps must answer within 0.1 s. Received:
        did not answer:
          /job:ps/task:0 at localhost:1 (...)
        ...
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
                _give_up(probes, waiting, timeout)
            if elapsed >= _QUIET_SECONDS:
                display.show(waiting, timeout - elapsed)
            # One task is as good as another to wait for, since all of them have to answer.
            waiting[0].answered.wait(min(_QUIET_SECONDS, timeout - elapsed))
    finally:
        display.wipe()
        for probe in probes:
            probe.stopped.set()
    display.end(f"All {len(probes)} tasks answered after {time.monotonic() - start:.0f} s.")


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
                connection = socket.create_connection(self._address, timeout=_CONNECT_SECONDS)
            except (socket.gaierror, UnicodeError):
                self.problem = f"the name {self._address[0]!r} does not resolve"
            except OSError as error:
                self.problem = (error.strerror or "timed out").lower()
            else:
                self.problem = "it accepts connections, but does not answer as a TensorFlow server does"
                with connection, contextlib.suppress(OSError):
                    connection.sendall(_GREETING)
                    header = connection.recv(_FRAME_HEADER_BYTES)
                    if len(header) == _FRAME_HEADER_BYTES and header[3] == _SETTINGS:
                        self.answered.set()
                        return
            self.stopped.wait(_RETRY_SECONDS)


class _Display:
    """Says what is being waited for."""

    def __init__(self, tasks: int):
        self._tasks = tasks
        # A program without a console may have no standard error.
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._next_line = 0.0
        self._shown = False

    def show(self, waiting: Iterable[_Probe], seconds_left: float) -> None:
        names = [probe.task for probe in waiting]
        head = f"Waiting for {len(names)} of {self._tasks} tasks, {seconds_left:.0f} s left"
        text = f"{head}: {', '.join(names)}"
        self._shown = True
        if self._terminal:
            self._rewrite(text)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            _log.warning(text)

    def wipe(self) -> None:
        if self._shown and self._terminal:
            self._rewrite("")
            print(end="\r", file=sys.stderr, flush=True)

    def end(self, text: str) -> None:
        if self._shown and self._terminal:
            print(text, file=sys.stderr, flush=True)
        elif self._shown:
            _log.warning(text)

    def _rewrite(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{text[:width]:<{width}}", end="", file=sys.stderr, flush=True)


def _give_up(probes: Iterable[_Probe], waiting: Collection[_Probe], timeout: float) -> NoReturn:
    silent = [f"  {probe.task} ({probe.problem})" for probe in waiting]
    # They are not asked again: one that answers only now is late, and would leave an error without a culprit.
    late = set(waiting)
    answered = [f"  {probe.task}" for probe in probes if probe not in late]
    raise ClusterTimeoutError(
        f"Every worker and ps must answer within {timeout:g} s. Received:\n"
        + "\n".join(["did not answer:", *silent, "answered:", *(answered or ["  none"])])
        + "\nStart the tasks that are missing, look into their logs, or correct their addresses; "
        "if they only need longer, raise connect_timeout."
    )
