"""Ports for servers that tests start."""

import socket
from contextlib import ExitStack


def free_ports(number):
    """Ports of the loopback address that no process listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
