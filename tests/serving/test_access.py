"""Networks of clients and the host names that are checked."""

import pytest

from regard.serving.access import _is_allowed, network_of
from regard.serving.server import allowed_hosts


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("x" * 101, "x" * 100),
    ],
)
def test_ipv6_clients_are_identified_by_their_network(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(
    ("address", "hosts", "checked"),
    [
        ("127.0.0.1", None, ()),
        ("0.0.0.0", None, None),
        ("127.0.0.1", ["Example.ORG"], ["example.org"]),
        ("0.0.0.0", ["a.org", "B.org"], ["a.org", "b.org"]),
        ("127.0.0.1", ["*"], None),
        ("0.0.0.0", ["a.org", "*"], None),
    ],
)
def test_local_names_are_checked_by_default_on_the_loopback_interface(
    address: str, hosts: list[str] | None, checked: object
) -> None:
    assert allowed_hosts(address, hosts) == checked


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("//localhost", True),
        ("//LOCALHOST:5000", True),
        ("//a.localhost.", True),
        ("//127.1.2.3:80", True),
        ("//[::1]:80", True),
        ("//served.example:1", True),
        ("//evil.example", False),
        ("//notlocalhost", False),
        ("//10.0.0.1", False),
        ("//[", False),
        ("//[::1", False),
        ("//", False),
    ],
)
def test_local_and_given_names_are_allowed(url: str, allowed: bool) -> None:
    assert _is_allowed(url, {"served.example"}) is allowed
