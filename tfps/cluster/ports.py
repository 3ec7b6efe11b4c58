"""Ports that stay ours from the moment they are chosen until the server is done with them.

Nothing enters; a `HeldPort` leaves. Asking for a free port and opening it later leaves a gap in which any
other process may be given the same one, so the port is kept bound all the while.
"""

from __future__ import annotations

import socket
import sys

import portpicker


class HeldPort:
    """A free TCP port of this machine that nobody else is given until `release`.

    On Linux a bound socket that never listens keeps the port: the system hands it to no one who asks for any
    free port, a server that is told to use it may listen there (as TensorFlow's do, with `SO_REUSEADDR`), and
    only one can. The hold outlives the server, so the same server may come back. Other systems do not share a
    port in this way; there the port is picked by `portpicker` and the gap remains.

    Attributes:
        number: The port, an `int`.

    Example:
        >>> port = HeldPort()
        >>> 0 < port.number < 65536
        True
        >>> port.release()
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        if sys.platform != "linux":
            self.number: int = portpicker.pick_unused_port()
            return
        # TensorFlow's servers listen on every interface of both families, so both are held where both exist.
        dual = socket.has_dualstack_ipv6()
        self._socket = socket.socket(socket.AF_INET6 if dual else socket.AF_INET, socket.SOCK_STREAM)
        if dual:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number = self._socket.getsockname()[1]

    def __repr__(self) -> str:
        return f"HeldPort({self.number})"

    def release(self) -> None:
        """Give the port back. A server that listens on it goes on listening."""
        if self._socket is not None:
            self._socket.close()
