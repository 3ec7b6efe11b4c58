"""`LocalCluster`: workers and parameter servers on this machine, for tests, notebooks and a first try.

The number of tasks enters; a running cluster leaves, whose `cluster_spec` describes it to any strategy. The
tasks are servers inside this process, quick to have and impossible to stop, or processes of their own, which
can be killed and restarted.
"""

from __future__ import annotations

import contextlib
import html
import numbers
import signal
import weakref
from types import TracebackType
from typing import Self

from tfps.cluster.current import started
from tfps.cluster.ports import HeldPort
from tfps.cluster.processes import TaskProcesses, describe_exit
from tfps.cluster.server import start_server
from tfps.errors import ClusterClosedError, ClusterConfigError, UnsupportedError

_KILLED = -signal.SIGKILL


class LocalCluster:
    """A cluster of workers and parameter servers on this machine. It runs once constructed.

    With `processes=False` the tasks are TensorFlow servers inside this process: up within a second, right for
    tests and notebooks. TensorFlow cannot stop such a server, so `close` only marks the cluster closed, and
    they go with the process. With `processes=True` each task is a process of its own, as on real machines:
    `kill` and `restart` try out failures, `logs` shows what a task wrote. The processes end with `close`,
    with the object, and with the program, even one that is killed; they never import the program's
    `__main__`, so a script without a main guard, a notebook and standard input all work.

    TensorFlow's servers listen on every network interface, without authentication.

    Args:
        workers: How many workers, at least 1.
        ps: How many parameter servers, at least 1.
        processes: Whether each task gets a process of its own. Parameter servers then see no GPU, and workers
            take its memory as they need it; both log only errors unless `TF_CPP_MIN_LOG_LEVEL` is set.

    Raises:
        ClusterConfigError: `workers` or `ps` is not a positive int, or `processes` not a bool.
        TaskFailedError: A process ended before it was up.
        ClusterTimeoutError: A process was not up within 60 seconds.

    Example:
        >>> import tfps
        >>> with tfps.LocalCluster(workers=2, ps=1) as cluster:
        ...     print(cluster)
        ...     print({task_type: len(addresses) for task_type, addresses in cluster.cluster_spec.items()})
        LocalCluster(workers=2, ps=1, processes=False, state='running')
        {'worker': 2, 'ps': 1}
    """

    def __init__(self, workers: int = 2, ps: int = 2, processes: bool = False) -> None:
        faults = [
            f"`{name}` must be a positive int. Received: {name}={count!r}. Give the number of tasks to start."
            for name, count in {"workers": workers, "ps": ps}.items()
            if not isinstance(count, numbers.Integral) or isinstance(count, bool) or count < 1
        ]
        if not isinstance(processes, bool):
            faults.append(f"`processes` must be True or False. Received: processes={processes!r}. Choose one.")
        if faults:
            raise ClusterConfigError(faults)
        workers, ps = int(workers), int(ps)
        self._tasks = [("worker", index) for index in range(workers)] + [("ps", index) for index in range(ps)]
        self._spec: dict[str, list[str]] = {"worker": [], "ps": []}
        self._processes: TaskProcesses | None = None
        resources = contextlib.ExitStack()
        # Runs once, whichever comes first: close, the end of this object, or the end of the program.
        self._finalizer = weakref.finalize(self, resources.close)
        try:
            for task_type, _ in self._tasks:
                port = HeldPort()
                resources.callback(port.release)
                self._spec[task_type].append(f"localhost:{port.number}")
            if processes:
                self._processes = TaskProcesses(self._spec)
                resources.callback(self._processes.close)
                self._processes.start(*self._tasks)
            else:
                for task in self._tasks:
                    start_server(self._spec, *task)
        except BaseException:  # Ctrl-C while the tasks start leaves none behind either.
            self.close()
            raise
        started(self)

    @property
    def cluster_spec(self) -> dict[str, list[str]]:
        """Where the tasks are: `{"worker": ["localhost:port", ...], "ps": [...]}`, a new dict each time."""
        return {task_type: list(addresses) for task_type, addresses in self._spec.items()}

    @property
    def closed(self) -> bool:
        """Whether the cluster was closed."""
        return not self._finalizer.alive

    def kill(self, task_type: str, task_id: int) -> None:
        """Kill the process of a task with SIGKILL, as a crash would; return when it is gone.

        Killing a task that `kill` ended before does nothing.

        Args:
            task_type: `"worker"` or `"ps"`.
            task_id: Index of the task, from 0.

        Raises:
            UnsupportedError: The cluster has no such task, or its tasks have no processes.
            ClusterClosedError: The cluster was closed.
            TaskFailedError: The task had ended by itself before.

        Example:
            >>> import tfps
            >>> with tfps.LocalCluster(workers=2, ps=1, processes=True) as cluster:
            ...     cluster.kill("worker", 1)
            ...     cluster.restart("worker", 1)
        """
        processes = self._process_of(task_type, task_id, "kill")
        exit_code = processes.exit_code(task_type, task_id)
        if exit_code not in (None, _KILLED):
            raise processes.failure(task_type, task_id, exit_code)
        processes.kill(task_type, task_id)

    def restart(self, task_type: str, task_id: int) -> None:
        """Start the process of a task anew on the same address; return when it accepts connections.

        A task that still runs is killed first. What the variables of a parameter server held is lost.

        Args:
            task_type: `"worker"` or `"ps"`.
            task_id: Index of the task, from 0.

        Raises:
            UnsupportedError: The cluster has no such task, or its tasks have no processes.
            ClusterClosedError: The cluster was closed.
            TaskFailedError: The new process ended before it was up.
            ClusterTimeoutError: It was not up within 60 seconds.

        Example:
            >>> import tfps
            >>> with tfps.LocalCluster(workers=1, ps=1, processes=True) as cluster:
            ...     cluster.restart("worker", 0)
        """
        processes = self._process_of(task_type, task_id, "restart")
        processes.kill(task_type, task_id)
        processes.start((task_type, task_id))

    def logs(self, task_type: str, task_id: int) -> str:
        """What a task wrote to stdout and stderr, over all its restarts.

        It is kept in a temporary file that goes when the cluster is closed: ask before.

        Args:
            task_type: `"worker"` or `"ps"`.
            task_id: Index of the task, from 0.

        Returns:
            The text, with bytes that are no UTF-8 replaced.

        Raises:
            UnsupportedError: The cluster has no such task, or its tasks have no processes.
            ClusterClosedError: The cluster was closed.

        Example:
            >>> import tfps
            >>> with tfps.LocalCluster(workers=1, ps=1, processes=True) as cluster:
            ...     print(cluster.logs("ps", 0).startswith("ps 0 starts"))
            True
        """
        return self._process_of(task_type, task_id, "logs").output(task_type, task_id)

    def close(self) -> None:
        """End the processes of the cluster and remove their logs. A second call does nothing.

        Servers inside this process go on listening until it ends, but strategies refuse a closed cluster.
        Models that were trained on it cannot be used afterwards.
        """
        self._finalizer()

    def __enter__(self) -> Self:
        self._raise_if_closed("A `with` block")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        workers, ps = len(self._spec["worker"]), len(self._spec["ps"])
        state = "closed" if self.closed else "running"
        return f"LocalCluster({workers=}, {ps=}, processes={self._processes is not None}, {state=})"

    def _repr_html_(self) -> str:
        rows = [
            (f"{task_type} {task_id}", self._spec[task_type][task_id], self._task_state(task_type, task_id))
            for task_type, task_id in self._tasks
        ]
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return (
            f"<details open><summary>{html.escape(repr(self))}</summary><table>"
            f"<thead><tr><th>role</th><th>address</th><th>state</th></tr></thead><tbody>{body}</tbody></table></details>"
        )

    def _task_state(self, task_type: str, task_id: int) -> str:
        if self.closed:
            return "closed"
        exit_code = self._processes.exit_code(task_type, task_id) if self._processes else None
        if exit_code is None:
            return "running"
        return "killed" if exit_code == _KILLED else f"ended with {describe_exit(exit_code)}"

    def _process_of(self, task_type: str, task_id: int, method: str) -> TaskProcesses:
        """The processes, once it is clear that the cluster runs and has such a task."""
        self._raise_if_closed(f"`{method}`")
        if self._processes is None:
            raise UnsupportedError(
                f"`{method}` must be called on a cluster whose tasks are processes. Received: {self!r}. "
                "Make it with `tfps.LocalCluster(..., processes=True)`."
            )
        if (task_type, task_id) not in self._tasks:
            raise UnsupportedError(
                f"`{method}` must name a task of the cluster. Received: task_type={task_type!r}, "
                f"task_id={task_id!r}. Tasks are 'worker' or 'ps', each counted from 0, in {self!r}."
            )
        return self._processes

    def _raise_if_closed(self, what: str) -> None:
        if self.closed:
            raise ClusterClosedError(
                f"{what} must come before the cluster is closed. Received: {self!r}. Make a new LocalCluster."
            )
