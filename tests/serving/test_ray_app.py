"""The arguments of `serve run`, with a module that records what Ray is asked for."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from regard.errors import UserError
from regard.serving.keys import make_key

MODULE = "regard.serving.ray_app"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What Ray is asked for; the applications are not started."""
    if "ray" in sys.modules:
        pytest.skip("tests/serving/on_ray.py tests the application with Ray itself")
    asked: dict[str, Any] = {}
    package, serve = ModuleType("ray"), ModuleType("ray.serve")

    def deployment(app: Any, **options: Any) -> Any:
        asked.update(app=app, **options)
        return SimpleNamespace(bind=lambda: "bound")

    for name, value in {"deployment": deployment, "ingress": lambda build: lambda: build, "Application": Any}.items():
        setattr(serve, name, value)
    package.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", package)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    sys.modules.pop(MODULE, None)
    yield asked
    sys.modules.pop(MODULE, None)  # it refers to the module that records


def test_replicas_and_resources_are_passed_on(ray: dict[str, Any], tmp_path: Path) -> None:
    ray_app = import_module(MODULE)

    _, line = make_key("ada")
    (tmp_path / "keys").write_text(line)
    arguments = {
        "runs": f"{tmp_path}/en-zh,{tmp_path}/en-de",
        "device": "cpu",
        "threads": "3",
        "workers": "2",
        "cpus": "4",
        "gpus": "0.5",
        "min_replicas": "2",
        "max_replicas": "7",
        "ongoing": "9",
        "grow_after": "1",
        "shrink_after": "5",
        "keys": str(tmp_path / "keys"),
        "precision": "int8",
    }
    assert ray_app.build(arguments) == "bound"
    assert ray["name"] == "regard"
    assert ray["autoscaling_config"] == {
        "min_replicas": 2,
        "max_replicas": 7,
        "target_ongoing_requests": 9,
        "upscale_delay_s": 1.0,
        "downscale_delay_s": 5.0,
    }
    assert ray["ray_actor_options"] == {"num_cpus": 4.0, "num_gpus": 0.5}
    assert (ray["max_ongoing_requests"], ray["graceful_shutdown_timeout_s"]) == (1024, 30.0)
    built: list[Any] = []
    ray_app.make_app = lambda service, **options: built.append((service.config, options))  # type: ignore[assignment]
    ray_app.configure_logging = lambda: built.append("logging")  # type: ignore[assignment]
    ray["app"]()
    logging, (config, options) = built
    assert (logging, options) == ("logging", {"wait_for_models": True})
    assert (config.workers, config.keys) == (2, (tmp_path / "keys").resolve())
    assert [(one.name, one.run, one.device, one.threads, one.precision) for one in config.load_requests] == [
        (name, (tmp_path / name).resolve(), "cpu", 3, "int8") for name in ("en-zh", "en-de")
    ]


def test_default_arguments(ray: dict[str, Any], tmp_path: Path) -> None:
    ray_app = import_module(MODULE)

    ray_app.build({"runs": str(tmp_path)})
    assert ray["autoscaling_config"]["min_replicas"] == 1
    assert ray["autoscaling_config"]["max_replicas"] == 4
    assert ray["ray_actor_options"] == {"num_cpus": 1.0, "num_gpus": 0.0}
    with pytest.raises(UserError, match="serve run: workers: "):
        ray_app.build({"runs": str(tmp_path), "workers": "0"})
    for name in ("cpus", "gpus", "grow_after", "shrink_after"):
        ray_app.build({"runs": str(tmp_path), name: "0"})
