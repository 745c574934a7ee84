"""From the start to the end: refusals at the door, models that are exchanged, and a drain that loses nothing."""

import asyncio
import shutil
import signal
import socket
from pathlib import Path

import httpx

from regard import Translator
from tests.asynchronous import run_apart
from tests.conftest import Command
from tests.serving.conftest import with_languages
from tests.serving.running import Running, wait_until

LINES = [f"{s} {v} {o}" for s in ("I", "You", "They", "We") for v in ("love", "buy", "see") for o in ("tea", "cats")]


def test_what_cannot_be_served_is_refused_in_one_sentence(trained_run: Path, tmp_path: Path, command: Command) -> None:
    assert (
        "unknown key charcters; did you mean characters?"
        in command("serve", trained_run, "--limit", "charcters=3").refusal
    )
    assert "write KEY=VALUE" in command("serve", trained_run, "--search", "beam").refusal
    assert "two runs are called toy" in command("serve", trained_run, trained_run).refusal
    assert f"{tmp_path / 'none'}: no such model folder" in command("serve", tmp_path / "none").refusal
    assert "cannot be read" in command("serve", trained_run, "--keys", tmp_path / "none").refusal
    (tmp_path / "empty").write_text("# nobody yet\n")
    assert "holds no key" in command("serve", trained_run, "--keys", tmp_path / "empty").refusal
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refusal = command("serve", trained_run, "--port", taken.getsockname()[1]).refusal
        assert refusal.endswith("(Address already in use); choose another --host or --port")


def test_a_folder_that_is_no_model_ends_the_server_with_a_sentence(tmp_path: Path) -> None:
    running = Running(tmp_path)
    assert running.process.wait(120) == 2
    running.end()
    said = "not a model folder (config.json is missing) nor a run with one in best/ or last/"
    assert running.lines[-1] == f"regard: {tmp_path}: {said}\n"


async def ask_for_ever(url: str, expected: dict[str, str], seen: list[tuple[str, int]]) -> None:
    """Asks until an answer says that the connection ends, or none can be made; each answer must be right."""
    async with httpx.AsyncClient(timeout=60) as client:
        number = 0
        while True:
            text = LINES[number % len(LINES)]
            number += 1
            try:
                answer = await client.post(f"{url}/translate", json={"q": text, "source": "en", "target": "zh"})
            except httpx.ConnectError:
                return
            seen.append((text, answer.status_code))
            assert answer.status_code == 200, answer.text
            assert answer.json()["translatedText"] == expected[text]
            if answer.headers.get("connection") == "close":
                return
            await asyncio.sleep(0.1)  # a load, but one that leaves the cores to those who start and end


def test_a_replaced_folder_is_picked_up_and_a_drain_loses_nothing(
    trained_run: Path, offline: Translator, tmp_path: Path
) -> None:
    folder = with_languages(trained_run, tmp_path / "model", "en", "zh")
    expected = dict(zip(LINES, offline(LINES), strict=True))
    running = Running(folder).until_ready()
    url = running.url
    assert httpx.get(f"{url}/ready").status_code == 200
    assert httpx.get(f"{url}/languages").json()[0]["targets"] == ["en", "zh"]

    async def under_load() -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        clients = [asyncio.create_task(ask_for_ever(url, expected, seen)) for _ in range(2)]
        await asyncio.sleep(0.3)
        (before,) = running.workers
        shutil.rmtree(folder)
        with_languages(trained_run, folder, "en", "zh")
        running.process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(wait_until, lambda: running.events("model replaced"), 120, "replacing")
        assert before not in running.workers
        so_far = len(seen)
        await asyncio.to_thread(wait_until, lambda: len(seen) > so_far + 20, 60, "going on")
        (folder / "model.safetensors").write_bytes(b"broken")
        running.process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(wait_until, lambda: running.events("model not replaced"), 120, "refusing")
        so_far = len(seen)
        await asyncio.to_thread(wait_until, lambda: len(seen) > so_far + 20, 60, "going on")
        async with httpx.AsyncClient(timeout=60) as client:
            asked = {"q": ". ".join(LINES * 3), "source": "en", "target": "zh"}
            long = [asyncio.create_task(client.post(f"{url}/translate", json=asked)) for _ in range(4)]
            await asyncio.sleep(0.1)
            running.process.send_signal(signal.SIGTERM)
            await asyncio.gather(*clients)
            answers = await asyncio.gather(*long)
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.json()["translatedText"] for answer in answers}) == 1
        return seen

    seen = run_apart(under_load())
    assert {status for _, status in seen} == {200}
    assert running.end() == 0
    logged = [line["status"] for line in running.events("request") if line["endpoint"] == "/translate"]
    assert logged == [200] * (len(seen) + 4)
    assert running.events("ended")
