"""Which clients are served: names of the server that they may use, and the network that identifies them."""

import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from regard.serving.errors import ApiError

ANY = "*"
PREFIX_BITS = 64
"""Length of the prefix of an IPv6 address that belongs to one client."""


def network_of(address: str) -> str:
    """Return the part of an address that identifies a client: an IPv4 address, or the prefix of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # such as the value of X-Forwarded-For
        return address[:100]
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed.packed, PREFIX_BITS), strict=False))


def check_host(headers: Mapping[str, str], hosts: Collection[str], origins: Collection[str]) -> None:
    """Reject requests that a web page of another site may have sent.

    The name of such a site can resolve to the address of this server (DNS rebinding), so that the browser considers
    the page and the server the same site. The headers `Host` and `Origin` contain the name.

    Args:
        headers: headers of the request.
        hosts: allowed names of the server, besides local ones.
        origins: origins that are allowed in addition (CORS).

    Raises:
        ApiError: The name in one of the headers is not allowed.
    """
    if not _is_allowed(f"//{headers.get('host', '')}", hosts):
        raise ApiError(403, "this host name is not allowed; allow it with --allow-host", "host", close=True)
    origin = headers.get("origin")
    if origin is None or ANY in origins or origin in origins:
        return
    if not _is_allowed(origin, hosts):
        raise ApiError(403, "this origin is not allowed; allow it with --cors", "host", close=True)


def _is_allowed(url: str, hosts: Collection[str]) -> bool:
    try:
        name = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return False
    if name in hosts or name == "localhost" or name.endswith(".localhost"):
        return True
    return is_loopback(name)


def is_loopback(address: str) -> bool:
    """Return whether a text is an address of the loopback interface."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
