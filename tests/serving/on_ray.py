"""The app on a local Ray cluster: two replicas, and one that becomes two. Not part of the suite: `make ray` runs it."""

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
from tests.serving.running import wait_until

ray = pytest.importorskip("ray")

LINES = [f"{s} {v} {o}" for s in ("I", "You", "They", "We") for v in ("love", "buy", "see") for o in ("tea", "cats")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of this machine alone, which looks at its load every half second, and its address."""
    from ray import serve

    often = {f"RAY_SERVE_{who}_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5" for who in ("REPLICA", "HANDLE")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in often.items():
            patch.setenv(name, value)
        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", runtime_env={"env_vars": often})
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
def url(cluster: str, trained_run: Path) -> Iterator[str]:
    """Two replicas."""
    with deployed("two", runs=str(trained_run), min_replicas=2, max_replicas=2):
        yield f"{cluster}/two"


def test_replicas_answer_as_the_translator_does(url: str, offline: Translator) -> None:
    expected = offline(LINES)
    assert httpx.get(f"{url}/ready").json() == {"status": "ok"}

    async def main() -> list[str]:
        async with httpx.AsyncClient(timeout=60) as client:
            asked = [{"q": line, "source": "en", "target": "zh"} for line in LINES * 5]
            answers = await asyncio.gather(*(client.post(f"{url}/translate", json=one) for one in asked))
        return [answer.json()["translatedText"] for answer in answers]

    assert asyncio.run(main()) == expected * 5


def running(name: str = "two") -> int:
    from ray import serve

    (deployment,) = serve.status().applications[name].deployments.values()
    return int(deployment.replica_states.get("RUNNING", 0))


def test_refusals_have_the_same_form(url: str) -> None:
    assert httpx.post(f"{url}/translate", content=b"\xff").status_code == 400
    big = httpx.post(f"{url}/translate", content=bytes(2_000_000))
    assert (big.status_code, list(big.json())) == (413, ["error"])


def test_streams_pass(url: str) -> None:
    asked = {"texts": "I love tea. We see cats."}
    answer = httpx.post(f"{url}/api/translate/stream", json=asked, timeout=60)
    assert answer.text.count("data: ") == 3


def test_a_replica_that_is_killed_is_replaced(url: str, offline: Translator) -> None:
    assert running() == 2
    known = ray.util.list_named_actors(all_namespaces=True)
    name = next(one["name"] for one in known if "REPLICA" in one["name"])
    ray.kill(ray.get_actor(name, namespace="serve"), no_restart=True)
    wait_until(lambda: name not in [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)])
    wait_until(lambda: running() == 2, what="another replica")
    asked = {"q": LINES, "source": "en", "target": "zh"}
    assert httpx.post(f"{url}/translate", json=asked, timeout=60).json()["translatedText"] == offline(LINES)


def test_load_brings_another_replica_and_idleness_lets_it_go(
    cluster: str, trained_run: Path, offline: Translator
) -> None:
    grows = {"min_replicas": 1, "max_replicas": 2, "ongoing": 1, "grow_after": 1, "shrink_after": 1}
    expected = offline(LINES)
    enough = threading.Event()
    seen: Counter[int] = Counter()

    def ask_until_enough() -> None:
        with httpx.Client(timeout=60) as client:
            while not enough.is_set():
                answer = client.post(f"{cluster}/grows/translate", json={"q": LINES, "source": "en", "target": "zh"})
                assert answer.json() == {"translatedText": expected}
                seen[answer.status_code] += 1

    with deployed("grows", runs=str(trained_run), **grows), ThreadPoolExecutor(6) as pool:
        assert running("grows") == 1
        clients = [pool.submit(ask_until_enough) for _ in range(6)]
        try:
            wait_until(lambda: running("grows") == 2, what="a second replica")
        finally:
            enough.set()
        for client in clients:
            client.result()
        wait_until(lambda: running("grows") == 1, what="an end of the second")
        answer = httpx.post(f"{cluster}/grows/translate", json={"q": LINES, "source": "en", "target": "zh"})
        assert answer.json() == {"translatedText": expected}
    assert set(seen) == {200}
