"""Waiting for tasks. A listening socket stands for a task that is up."""

import re
import socket
import threading
import time

import portpicker
import pytest

from tfps.cluster import waiting
from tfps.cluster.waiting import wait_for_tasks
from tfps.errors import ClusterTimeoutError


@pytest.fixture
def up():
    with socket.create_server(("localhost", 0)) as listener:
        yield f"localhost:{listener.getsockname()[1]}"


@pytest.fixture
def down():
    return f"localhost:{portpicker.pick_unused_port()}"


def test_says_nothing_when_all_answer(up, capfd):
    wait_for_tasks({"worker": [up], "ps": [up]}, timeout=10)
    assert capfd.readouterr().err == ""


def test_the_deadline_lists_who_answered_and_who_did_not(up, down):
    start = time.monotonic()
    with pytest.raises(ClusterTimeoutError) as caught:
        wait_for_tasks({"worker": [up], "ps": [up, down]}, timeout=1)
    assert 1 <= time.monotonic() - start < 3
    missing, answered = re.fullmatch(
        r"Every worker and ps must answer within 1 s\. Received:\ndid not answer:\n(.*)\nanswered:\n(.*)\n"
        r"Start the tasks .* raise connect_timeout\.",
        str(caught.value),
        re.DOTALL,
    ).groups()
    assert missing == f"  /job:ps/task:1 at {down} (connection refused)"
    assert answered == f"  /job:worker/task:0 at {up}\n  /job:ps/task:0 at {up}"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
def test_a_name_that_does_not_resolve_is_reported_as_such(host):
    with pytest.raises(ClusterTimeoutError, match=rf"/job:ps/task:0.*{re.escape(repr(host))} does not resolve"):
        wait_for_tasks({"ps": [f"{host}:2222"]}, timeout=1)


def test_many_silent_tasks_do_not_add_up(monkeypatch):
    # 192.0.2.0/24 is reserved for documentation: nobody answers, or the system says at once that nobody can.
    silent = [f"192.0.2.{i}:2222" for i in range(1, 101)]
    start = time.monotonic()
    with pytest.raises(ClusterTimeoutError) as caught:
        wait_for_tasks({"ps": silent}, timeout=1)
    assert time.monotonic() - start < 4
    assert str(caught.value).count("/job:ps/task:") == 100


class Screen:
    """Standard error that also tells when something was first said."""

    def __init__(self, terminal):
        self.terminal = terminal
        self.text = ""
        self.spoken = threading.Event()

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.text += text
        self.spoken.set()

    def flush(self):
        pass


@pytest.mark.parametrize("terminal", [True, False])
def test_a_late_task_is_joined_with_a_countdown_meanwhile(monkeypatch, up, down, terminal):
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.2)
    failures = []

    def wait():
        try:
            wait_for_tasks({"worker": [up], "ps": [down]}, timeout=30)
        except ClusterTimeoutError as error:
            failures.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert screen.spoken.wait(10)
    with socket.create_server(("localhost", int(down.split(":")[1]))):
        waiter.join(10)
        assert not waiter.is_alive()
    assert failures == []
    assert f"Waiting for 1 of 2 tasks, 30 s left: /job:ps/task:0 at {down}" in screen.text
    assert re.search(r"All 2 tasks answered after \d+ s\.\n$", screen.text)
    countdown = screen.text.split("All 2")[0]
    # On a terminal the line is rewritten and wiped; elsewhere a single line, though several turns went by.
    assert countdown.count("\n") == (0 if terminal else 1)
    assert countdown.endswith("\r") == terminal
