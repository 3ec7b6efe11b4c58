import contextlib
import errno
import socket

import pytest

from tfps.cluster.ports import HeldPort


def listen(port):
    """A listener as TensorFlow's servers make one: on every interface, with SO_REUSEADDR."""
    return socket.create_server(("", port), reuse_port=False)


def test_nobody_else_is_given_a_held_port():
    with contextlib.ExitStack() as cleanup:
        held = [HeldPort() for _ in range(200)]
        others = []
        for _ in range(200):
            other = cleanup.enter_context(socket.socket())
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("", 0))
            others.append(other.getsockname()[1])
        numbers = [port.number for port in held]
        for port in held:
            cleanup.callback(port.release)
        assert len(set(numbers)) == 200
        assert not set(numbers) & set(others)


def test_nothing_answers_on_a_held_port_before_its_server():
    port = HeldPort()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("localhost", port.number), timeout=5)
    port.release()


def test_one_server_at_a_time_listens_on_a_held_port_and_may_come_back():
    port = HeldPort()
    for _ in range(2):
        with listen(port.number) as server:
            with socket.create_connection(("localhost", port.number), timeout=5):
                connection, _ = server.accept()
                connection.close()
            with pytest.raises(OSError, match=r".") as refused:
                listen(port.number)
            assert refused.value.errno == errno.EADDRINUSE
    port.release()


def test_a_released_port_is_anyones():
    port = HeldPort()
    port.release()
    with socket.socket() as anyone:
        anyone.bind(("", port.number))
