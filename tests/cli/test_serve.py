"""`regard serve` passes its options on to the server."""

import sys
from pathlib import Path
from typing import Any

import pytest

from regard.serving import server
from regard.serving.config import ServingConfig, split_cores
from regard.serving.messages import LoadRequest
from tests.conftest import Command


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of the server, which is not started."""
    calls: list[Any] = []
    monkeypatch.setattr(server, "serve", lambda *arguments: calls.append(arguments))
    return calls


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two model folders; only workers check their content."""
    found = [tmp_path / name for name in ("de", "fr")]
    for folder in found:
        folder.mkdir()
    return found


def test_options_are_passed_on(served: list[Any], folders: list[Path], tmp_path: Path, command: Command) -> None:
    words = ["--device", "cpu", "--host", "::1", "--port", 7, "--workers", 3, "--threads", 4, "--search", "beam=2"]
    words += ["--limit", "items=9", "--cors", "https://a.example", "--allow-host", "b.example", "--proxy", "10.0.0.0/8"]
    words += ["--keys", tmp_path / "keys", "--log-text", "--engine", "regard", "--precision", "int8"]
    assert command("serve", f"german={folders[0]}", folders[1], *words).code == 0
    ((config, host, port),) = served
    assert isinstance(config, ServingConfig)
    assert (host, port, config.workers, config.limits.items) == ("::1", 7, 3, 9)
    assert list(config.load_requests) == [
        LoadRequest(name, folder, "cpu", 4, {"beam": "2"}, "regard", "int8")
        for name, folder in zip(("german", "fr"), folders, strict=True)
    ]
    assert (config.keys, config.origins, config.log_text) == (tmp_path / "keys", ("https://a.example",), True)
    assert (list(config.hosts or ()), list(config.proxies)) == (["b.example"], ["10.0.0.0/8"])


def test_cores_are_shared_by_default(served: list[Any], folders: list[Path], command: Command) -> None:
    assert command("serve", *folders).code == 0
    config = served[0][0]
    assert (config.workers, config.load_requests[0].threads) == split_cores(2)
    assert (config.keys, config.origins, config.log_text, config.hosts) == (None, (), False, None)
    assert list(config.proxies) == []


@pytest.mark.parametrize("address", ["proxy.example", "10.0.0.0/33", "10.0.0.1/8"])
def test_proxies_are_addresses_or_networks(
    address: str, served: list[Any], folders: list[Path], command: Command
) -> None:
    error = command("serve", folders[0], "--proxy", "::1", "--proxy", address).error
    assert error == f"--proxy {address}: expected an IP address or a network such as 10.0.0.0/8"
    assert not served


def test_each_model_has_a_name_of_its_own(served: list[Any], folders: list[Path], command: Command) -> None:
    error = command("serve", folders[0], f"de={folders[1]}").error
    assert error == f"two runs are called de; give one another name, such as other={folders[1]}"
    missing = folders[0] / "missing"
    assert command("serve", f"a={missing}").error == f"{missing}: no such model folder"
    assert not served


def test_a_missing_package_is_named(folders: list[Path], command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "regard.serving.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    error = command("serve", folders[0]).error
    assert error == "serving needs uvicorn; install it with pip install 'regard[serve]'"


def test_every_direction_of_a_model_is_served(served: list[Any], folders: list[Path], command: Command) -> None:
    (folders[0] / "config.json").write_text('{"directions": [["en", "de"], ["de", "en"]]}', encoding="utf-8")
    assert command("serve", *folders).code == 0
    requests = served[0][0].load_requests
    assert [(one.name, one.languages) for one in requests] == [
        ("de-en-de", ("en", "de")),
        ("de-de-en", ("de", "en")),
        ("fr", None),
    ]
