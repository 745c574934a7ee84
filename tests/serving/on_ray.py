"""The app on a local Ray cluster, with two replicas. Not part of the suite: `make ray` runs it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from regard import Translator
from tests.serving.running import wait_until

ray = pytest.importorskip("ray")

LINES = [f"{s} {v} {o}" for s in ("I", "You", "They", "We") for v in ("love", "buy", "see") for o in ("tea", "cats")]


@pytest.fixture(scope="module")
def url(trained_run: Path) -> Iterator[str]:
    from ray import serve

    from regard.serving.cluster import build

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    serve.start(http_options={"host": "127.0.0.1", "port": 8123})
    arguments = {"runs": str(trained_run), "cpus": 0.5, "min_replicas": 2, "max_replicas": 2}
    serve.run(build(arguments), name="regard", route_prefix="/")
    yield "http://127.0.0.1:8123"
    serve.shutdown()
    ray.shutdown()


def test_replicas_answer_as_the_translator_does(url: str, offline: Translator) -> None:
    expected = offline(LINES)
    assert httpx.get(f"{url}/ready").json() == {"status": "ok"}

    async def main() -> list[str]:
        async with httpx.AsyncClient(timeout=60) as client:
            asked = [{"q": line, "source": "en", "target": "zh"} for line in LINES * 5]
            answers = await asyncio.gather(*(client.post(f"{url}/translate", json=one) for one in asked))
        return [answer.json()["translatedText"] for answer in answers]

    assert asyncio.run(main()) == expected * 5


def running() -> int:
    from ray import serve

    (deployment,) = serve.status().applications["regard"].deployments.values()
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
