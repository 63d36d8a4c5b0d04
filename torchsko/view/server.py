"""Host and port of a served page."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from torchsko.errors import TorchskoError

MAX_PORT = 65535
"""Largest port number."""

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "")
"""Hosts that this machine reaches by the name localhost."""


def free_port(host: str, port: int) -> int:
    """Find the first free port from `port` on; 0 stays 0, and the system chooses.

    viser opens its port in a thread and would wait forever if that failed.

    Args:
        host: name or address of this machine.
        port: 0 to 65535.

    Raises:
        TorchskoError: if the host is not an address of this machine, or no port is free.
    """
    if not 0 <= port <= MAX_PORT:
        raise TorchskoError(
            f"port {port} does not exist.",
            f"Ports are numbered from 0 to {MAX_PORT}.",
            "Pass --port 8080, say.",
        )
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        places = [(family, str(address[0])) for family, _, _, _, address in found]
        _bind(places, 0)
    except OSError as error:
        raise TorchskoError(
            f"host {host!r} cannot serve a page: {error.strerror or error}.",
            "A page is served at an address of this machine.",
            "Pass --host 127.0.0.1, or 0.0.0.0 to admit other machines.",
        ) from error
    for candidate in range(port, MAX_PORT + 1):
        try:
            _bind(places, candidate)
            return candidate
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise TorchskoError(
        f"no port from {port} on is free.",
        "A page needs a free port.",
        "Pass --port 8080, say.",
    )


def address_of(host: str, port: int) -> str:
    """URL of a served page for a browser on this machine."""
    if host in LOCAL_HOSTS:
        return f"http://localhost:{port}"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind(places: Sequence[tuple[int, str]], port: int) -> None:
    """Bind a port at all addresses, and release it.

    Raises:
        OSError: if it cannot be bound.
    """
    with ExitStack() as stack:
        for family, address in places:
            stack.enter_context(socket.create_server((address, port), family=family))
