"""The launcher: a process that imports TensorFlow once and forks the tasks of one `LocalCluster`.

Orders enter over a socket, one at a time; after each, the exit codes of all tasks leave. The launcher never
sees the user's `__main__`. It belongs to the process that started it: when that one closes the socket or is
gone, however it ended, the launcher kills and reaps every task, removes the logs and ends. It is run by
`tfps.cluster.processes`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from tfps.cluster.server import start_server

_PARENT_CHECK = 1.0  # seconds between two looks at whether the parent is still there
_PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


class Messages:
    """JSON objects over a socket, one a line. The socket is closed with it.

    A receive that ends early, by its deadline or by Ctrl-C, loses nothing: the next one goes on from there.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = b""

    def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout: float) -> dict[str, Any]:
        """Return the next message.

        Raises:
            TimeoutError: There was none for `timeout` seconds.
            EOFError: The sender is gone.
        """
        deadline = time.monotonic() + timeout
        while b"\n" not in self._received:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = self._socket.recv(65536)
            if not chunk:
                raise EOFError
            self._received += chunk
        line, self._received = self._received.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Close the connection, also for forks of this process that hold a copy of the socket."""
        with contextlib.suppress(OSError):  # The other side may be gone already.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class _Task:
    """One forked task: `exit_code` is None while it runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.exit_code: int | None = None

    def look(self, wait: bool = False) -> None:
        if self.exit_code is None:
            pid, status = os.waitpid(self._pid, 0 if wait else os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        self.look()  # A process that was reaped has given its number away.
        if self.exit_code is None:
            os.kill(self._pid, signal.SIGKILL)
            self.look(wait=True)


def launch() -> NoReturn:
    """Serve orders until the parent closes the connection or is gone; end the process then.

    The command line gives the file descriptor of the socket over which orders come, the process id of the
    parent, and the directory of the logs, which is removed at the end.
    """
    connection, parent, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    messages = Messages(socket.socket(fileno=connection))
    launcher = os.getpid()
    tasks: dict[str, _Task] = {}
    try:
        # A fork of the parent may outlive it and keep the socket open, so the parent itself is looked at too.
        while os.getppid() == parent:
            try:
                order = messages.receive(_PARENT_CHECK)
            except TimeoutError:
                continue
            except (EOFError, OSError):
                break
            if order["do"] == "start":
                tasks[order["task"]] = _Task(os.fork() or _serve(order, connection, launcher))
            elif order["do"] == "kill":
                tasks[order["task"]].kill()
            for task in tasks.values():
                task.look()
            exit_codes = {name: task.exit_code for name, task in tasks.items()}
            with contextlib.suppress(OSError):  # A parent that is gone is noticed by the next receive.
                messages.send({"request": order["request"], "exit_codes": exit_codes})
    finally:
        for task in tasks.values():
            task.kill()
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)  # An orderly end would spend a second on unloading TensorFlow.


def _serve(order: dict[str, Any], connection: int, launcher: int) -> NoReturn:
    """Be one task until killed; runs in the fork and never returns from it."""
    try:
        _die_with(launcher)
        os.close(connection)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        task_type, task_id, cluster_spec = order["task_type"], order["task_id"], order["cluster_spec"]
        if task_type == "ps":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        else:
            os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        address = cluster_spec[task_type][task_id]
        print(f"{task_type} {task_id} starts, process {os.getpid()}, address {address}", flush=True)
        start_server(cluster_spec, task_type, task_id)
        Path(order["ready"]).touch()
        while True:
            signal.pause()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _die_with(launcher: int) -> None:
    """Have the system kill this process when the launcher dies without having done so (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # It died before the call.
            os._exit(1)
