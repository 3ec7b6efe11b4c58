"""Waiting for tasks. What begins as HTTP/2 servers do stands for a task that is up."""

import contextlib
import logging
import re
import socket
import socketserver
import threading
import time

import portpicker
import pytest

from tfps.cluster import waiting
from tfps.cluster.waiting import wait_for_tasks
from tfps.errors import ClusterTimeoutError


class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # an empty frame of settings, RFC 9113
        self.request.recv(1024)


class Task(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 200

    def handle_error(self, request, client_address):
        pass  # the client is free to go at any time


@contextlib.contextmanager
def task(port=0, answer=Answer, kind=Task, host="localhost"):
    with kind((host, port), answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield f"{host}:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def up():
    with task() as address:
        yield address


NO_SERVER = (
    r"/job:ps/task:0 at localhost:\d+ \(it accepts connections, but does not answer as a TensorFlow server does\)"
)


@pytest.fixture
def down():
    return f"localhost:{portpicker.pick_unused_port()}"


@pytest.fixture
def mute():
    """A task that neither accepts nor refuses: its queue of connections is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as queued:
        for _ in range(3):
            client = queued.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _no_thread_stays():
    yield
    deadline = time.monotonic() + 20
    for thread in threading.enumerate():
        if thread.name.startswith("tfps-wait"):
            thread.join(deadline - time.monotonic())
            assert not thread.is_alive()


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


def missing_and_answered(error, seconds):
    return re.fullmatch(
        rf"Every worker and ps must answer within {seconds} s\. Received:\ndid not answer:\n(.*)\nanswered:\n(.*)\n"
        r"Start the tasks .* raise connect_timeout\.",
        str(error),
        re.DOTALL,
    ).groups()


@pytest.mark.parametrize("terminal", [True, False])
def test_says_nothing_when_all_answer(monkeypatch, caplog, up, terminal):
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    start = time.monotonic()
    wait_for_tasks({"worker": [up], "ps": [up]}, timeout=30)
    assert time.monotonic() - start < 5
    assert screen.text == ""
    assert caplog.records == []


def test_the_deadline_lists_who_answered_and_who_did_not(up, down):
    start = time.monotonic()
    with pytest.raises(ClusterTimeoutError) as caught:
        wait_for_tasks({"worker": [up], "ps": [up, down]}, timeout=1)
    assert 1 <= time.monotonic() - start < 3
    missing, answered = missing_and_answered(caught.value, 1)
    assert missing == f"  /job:ps/task:1 at {down} (connection refused)"
    assert answered == f"  /job:worker/task:0 at {up}\n  /job:ps/task:0 at {up}"


def test_why_each_did_not_answer(monkeypatch, down, mute):
    def look_up(host, *args, of=socket.getaddrinfo):
        if host == "nowhere.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return of(host, *args)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    start = time.monotonic()
    with pytest.raises(ClusterTimeoutError) as caught:
        wait_for_tasks({"worker": [mute, down], "ps": ["nowhere.example:1", "a..b:1"]}, timeout=0.5)
    assert time.monotonic() - start < 3
    missing, answered = missing_and_answered(caught.value, 0.5)
    assert missing.splitlines() == [
        f"  /job:worker/task:0 at {mute} (no answer yet)",
        f"  /job:worker/task:1 at {down} (connection refused)",
        "  /job:ps/task:0 at nowhere.example:1 (the name 'nowhere.example' does not resolve)",
        "  /job:ps/task:1 at a..b:1 (the name 'a..b' does not resolve)",
    ]
    assert answered == "  none"


def test_a_connection_that_times_out_is_tried_again(monkeypatch, mute):
    monkeypatch.setattr(waiting, "_CONNECT_SECONDS", 0.1)
    with pytest.raises(ClusterTimeoutError, match=rf"/job:ps/task:0 at {mute} \(timed out\)"):
        wait_for_tasks({"ps": [mute]}, timeout=1)


@pytest.mark.parametrize("answer", [b"", b"\0\0", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_another_program_on_the_port_is_no_task(answer):
    class OtherProgram(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.sendall(answer)

    with (
        task(answer=OtherProgram) as address,
        pytest.raises(
            ClusterTimeoutError, match=r"\(it accepts connections, but does not answer as a TensorFlow server"
        ),
    ):
        wait_for_tasks({"ps": [address]}, timeout=0.5)


def test_a_task_that_only_accepts_connections_is_not_up():
    with (
        socket.create_server(("localhost", 0)) as stopped,
        pytest.raises(
            ClusterTimeoutError, match=r"\(it accepts connections, but does not answer as a TensorFlow server"
        ),
    ):
        wait_for_tasks({"ps": [f"localhost:{stopped.getsockname()[1]}"]}, timeout=0.5)


def test_a_hundred_tasks_are_asked_at_once(monkeypatch, up):
    all_are_asked = threading.Barrier(100, timeout=30)
    connect = socket.create_connection

    def connect_when_all_are_asked(*args, **kwargs):
        all_are_asked.wait()
        return connect(*args, **kwargs)

    monkeypatch.setattr(socket, "create_connection", connect_when_all_are_asked)
    wait_for_tasks({"worker": [up] * 100}, timeout=30)


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_ipv6():
    class Ipv6Task(Task):
        address_family = socket.AF_INET6

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with task(kind=Ipv6Task, host="::1") as address:
        wait_for_tasks({"ps": [address.replace("::1", "[::1]")]}, timeout=30)


@contextlib.contextmanager
def waiting_for(jobs):
    """Runs a wait meanwhile; at the end the late task comes up, and it has to be over without an error."""
    failures = []

    def wait():
        try:
            wait_for_tasks(jobs, timeout=30)
        except BaseException as error:
            failures.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    yield
    with task(int(jobs["ps"][0].split(":")[1])):
        waiter.join(20)
    assert not waiter.is_alive()
    assert failures == []


def test_a_late_task_is_joined_with_one_line_of_a_terminal_meanwhile(monkeypatch, caplog, up, down):
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.1)
    with waiting_for({"worker": [up], "ps": [down]}):
        assert screen.spoken.wait(20)
        while screen.text.count("\r") < 3:
            screen.spoken.clear()
            assert screen.spoken.wait(20)
    _, *countdown, wiped, end = screen.text.split("\r")
    whole = f": /job:ps/task:0 at {down}"
    for line in countdown:
        head, left = re.match(r"(Waiting for 1 of 2 tasks, (\d+) s left)", line).groups()
        assert int(left) <= 30
        assert line == (head + whole)[:59].ljust(59)
    assert wiped == " " * 59
    assert re.fullmatch(r"All 2 tasks answered after \d+ s\.\n", end)
    assert caplog.records == []


def test_a_late_task_is_joined_with_log_records_meanwhile(monkeypatch, caplog, up, down):
    seen = threading.Event()
    screen = Screen(terminal=False)

    class Handler(logging.Handler):
        def emit(self, record):
            seen.set()

    handler = Handler()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.1)
    logging.getLogger("tfps").addHandler(handler)
    try:
        with waiting_for({"worker": [up], "ps": [down]}):
            assert seen.wait(20)
    finally:
        logging.getLogger("tfps").removeHandler(handler)
    (waited, ended) = caplog.messages
    assert {record.name for record in caplog.records} == {"tfps"}
    assert re.fullmatch(rf"Waiting for 1 of 2 tasks, \d+ s left: /job:ps/task:0 at {down}", waited)
    assert re.fullmatch(r"All 2 tasks answered after \d+ s\.", ended)
    assert screen.text == ""


def test_records_come_every_so_often(monkeypatch, caplog, down):
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "_SECONDS_BETWEEN_LINES", 0.2)
    with pytest.raises(ClusterTimeoutError):
        wait_for_tasks({"ps": [down]}, timeout=1)
    assert 2 <= len(caplog.messages) <= 5
    assert all(re.match(r"Waiting for 1 of 1 tasks, [01] s left", message) for message in caplog.messages)


def test_the_line_of_a_terminal_goes_before_the_error(monkeypatch, down):
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.1)
    with pytest.raises(ClusterTimeoutError):
        wait_for_tasks({"ps": [down]}, timeout=0.5)
    assert re.search(r"Waiting.*\r +\r$", screen.text)


def test_the_line_of_a_terminal_goes_after_ctrl_c(monkeypatch, down):
    class Interrupted(Screen):
        def flush(self):
            if not self.spoken.is_set():
                return
            self.flush = lambda: None
            raise KeyboardInterrupt

    screen = Interrupted(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(waiting, "_QUIET_SECONDS", 0.1)
    with pytest.raises(KeyboardInterrupt):
        wait_for_tasks({"ps": [down]}, timeout=30)
    assert re.search(r"Waiting.*\r +\r$", screen.text)


def test_a_program_without_standard_error_can_wait(monkeypatch, up, down):
    monkeypatch.setattr("sys.stderr", None)
    wait_for_tasks({"ps": [up]}, timeout=30)
    with pytest.raises(ClusterTimeoutError):
        wait_for_tasks({"ps": [down]}, timeout=0.2)
