"""Where a page is served: an address of this machine, and a port of it that is free."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from torchsko.errors import TorchskoError

LAST = 65535
"""The largest number of a port."""


NEAR = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "")
"""Hosts whose pages this machine finds by the name localhost."""


def free_port(host: str, port: int) -> int:
    """The port, or the next one that is free; 0 stays 0, which leaves the choice to the system.

    viser asks in a thread of its own, and waits for ever where there is none.

    Args:
        host: name or address of this machine.
        port: 0 to 65535.

    Raises:
        TorchskoError: when the host is none of this machine's, or no port is free from there on.
    """
    if not 0 <= port <= LAST:
        raise TorchskoError(
            f"port {port} was asked for.",
            f"Ports are numbered up to {LAST}.",
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
            "Pass --host 127.0.0.1, or 0.0.0.0 where others may look, too.",
        ) from error
    for candidate in range(port, LAST + 1):
        try:
            _bind(places, candidate)
            return candidate
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise TorchskoError(
        f"no port from {port} on is free.",
        "A page needs one of its own.",
        "Pass --port 8080, say.",
    )


def address_of(host: str, port: int) -> str:
    """What to type into a browser on this machine, of a page that is served there."""
    if host in NEAR:
        return f"http://localhost:{port}"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind(places: Sequence[tuple[int, str]], port: int) -> None:
    """Take a port at all places, and give it back.

    Raises:
        OSError: when it cannot be taken.
    """
    with ExitStack() as held:
        for family, address in places:
            held.enter_context(socket.create_server((address, port), family=family))
