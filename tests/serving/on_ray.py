"""The application on a local Ray cluster. Not part of the test suite; run it with `make ray`."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from regard import Translator
from tests.serving.server_process import wait_until

ray = pytest.importorskip("ray")

LINES = [f"{s} {v} {o}" for s in ("I", "You", "They", "We") for v in ("love", "buy", "see") for o in ("tea", "cats")]


@pytest.fixture(scope="module")
def cluster_url() -> Iterator[str]:
    """A cluster on this machine that measures its load every half second."""
    from ray import serve

    intervals = {f"RAY_SERVE_{name}_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5" for name in ("REPLICA", "HANDLE")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in intervals.items():
            patch.setenv(name, value)
        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", runtime_env={"env_vars": intervals})
        serve.start(http_options={"host": "127.0.0.1", "port": 8123})
        yield "http://127.0.0.1:8123"
        serve.shutdown()
        ray.shutdown()


@contextmanager
def deployed(name: str, **arguments: object) -> Iterator[None]:
    from ray import serve

    from regard.serving.ray_app import build

    serve.run(build({"cpus": 0.5} | arguments), name=name, route_prefix=f"/{name}")
    yield
    serve.delete(name)


@pytest.fixture(scope="module")
def url(cluster_url: str, trained_run: Path) -> Iterator[str]:
    """A deployment with two replicas."""
    with deployed("two", runs=str(trained_run), min_replicas=2, max_replicas=2):
        yield f"{cluster_url}/two"


def count_replicas(name: str = "two") -> int:
    from ray import serve

    (deployment,) = serve.status().applications[name].deployments.values()
    return int(deployment.replica_states.get("RUNNING", 0))


def test_replicas_translate_like_the_translator(url: str, translator: Translator) -> None:
    expected = translator(LINES)
    assert httpx.get(f"{url}/ready").json() == {"status": "ok"}

    async def main() -> list[str]:
        async with httpx.AsyncClient(timeout=300) as client:
            bodies = [{"q": line, "source": "en", "target": "zh"} for line in LINES * 5]
            responses = await asyncio.gather(*(client.post(f"{url}/translate", json=body) for body in bodies))
        return [response.json()["translatedText"] for response in responses]

    assert asyncio.run(main()) == expected * 5


def test_error_responses_have_the_same_format(url: str) -> None:
    assert httpx.post(f"{url}/translate", content=b"\xff").status_code == 400
    too_large = httpx.post(f"{url}/translate", content=bytes(2_000_000))
    assert (too_large.status_code, list(too_large.json())) == (413, ["error"])


def test_streams_are_supported(url: str) -> None:
    body = {"texts": "I love tea. We see cats."}
    response = httpx.post(f"{url}/api/translate/stream", json=body, timeout=300)
    assert response.text.count("data: ") == 3


def test_killed_replica_is_replaced(url: str, translator: Translator) -> None:
    assert count_replicas() == 2
    name = next(name for name in actor_names() if "REPLICA" in name)
    ray.kill(ray.get_actor(name, namespace="serve"), no_restart=True)
    wait_until(lambda: name not in actor_names())
    wait_until(lambda: count_replicas() == 2, what="a new replica")
    body = {"q": LINES, "source": "en", "target": "zh"}
    assert httpx.post(f"{url}/translate", json=body, timeout=300).json()["translatedText"] == translator(LINES)


def actor_names() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


def test_number_of_replicas_follows_the_load(cluster_url: str, trained_run: Path, translator: Translator) -> None:
    scaling = {"min_replicas": 1, "max_replicas": 2, "ongoing": 1, "grow_after": 1, "shrink_after": 1}
    expected = translator(LINES)
    stop = threading.Event()
    statuses: Counter[int] = Counter()
    body = {"q": LINES, "source": "en", "target": "zh"}

    def send_requests() -> None:
        with httpx.Client(timeout=300) as client:
            while not stop.is_set():
                response = client.post(f"{cluster_url}/scaled/translate", json=body)
                assert response.json() == {"translatedText": expected}
                statuses[response.status_code] += 1

    with deployed("scaled", runs=str(trained_run), **scaling), ThreadPoolExecutor(6) as pool:
        assert count_replicas("scaled") == 1
        clients = [pool.submit(send_requests) for _ in range(6)]
        try:
            wait_until(lambda: count_replicas("scaled") == 2, what="a second replica")
        finally:
            stop.set()
        for client in clients:
            client.result()
        wait_until(lambda: count_replicas("scaled") == 1, what="the removal of the second replica")
        response = httpx.post(f"{cluster_url}/scaled/translate", json=body)
        assert response.json() == {"translatedText": expected}
    assert set(statuses) == {200}
