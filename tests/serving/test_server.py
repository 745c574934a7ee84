"""Start, reload and shutdown of the server."""

import asyncio
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import httpx

from regard import Translator
from tests.asynchronous import run_in_thread
from tests.conftest import Command
from tests.serving.conftest import copy_with_languages
from tests.serving.server_process import ServerProcess, wait_until

LINES = [f"{s} {v} {o}" for s in ("I", "You", "They", "We") for v in ("love", "buy", "see") for o in ("tea", "cats")]


def test_invalid_options_are_rejected_with_a_message(trained_run: Path, tmp_path: Path, command: Command) -> None:
    misspelt = command("serve", trained_run, "--limit", "charcters=3").error
    assert "unknown key charcters; did you mean characters?" in misspelt
    assert "write KEY=VALUE" in command("serve", trained_run, "--search", "beam").error
    assert "two runs are called toy" in command("serve", trained_run, trained_run).error
    assert f"{tmp_path / 'none'}: no such model folder" in command("serve", tmp_path / "none").error
    assert "none: no such file" in command("serve", trained_run, "--keys", tmp_path / "none").error
    (tmp_path / "empty").write_text("# no keys\n")
    assert "the file contains no keys" in command("serve", trained_run, "--keys", tmp_path / "empty").error
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refusal = command("serve", trained_run, "--port", taken.getsockname()[1]).error
        assert refusal.endswith("(Address already in use); choose another --host or --port")


def test_folder_without_a_model_stops_the_server_with_a_message(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    assert server.process.wait(120) == 2
    server.stop()
    assert server.lines[-1].startswith(f"regard: {tmp_path}: ")
    assert "config.json" in server.lines[-1]


async def send_requests(url: str, expected: dict[str, str], statuses: list[int]) -> None:
    """Send requests and check the responses until the server closes the connection."""
    async with httpx.AsyncClient(timeout=300) as client:
        while True:
            text = LINES[len(statuses) % len(LINES)]
            try:
                response = await client.post(f"{url}/translate", json={"q": text, "source": "en", "target": "zh"})
            except httpx.ConnectError:
                return
            statuses.append(response.status_code)
            assert response.status_code == 200, response.text
            assert response.json()["translatedText"] == expected[text]
            if response.headers.get("connection") == "close":
                return
            await asyncio.sleep(0.1)  # leave CPU time to workers that start


async def until(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what=what)


def test_reload_and_shutdown_under_load_lose_no_request(
    trained_run: Path, translator: Translator, tmp_path: Path
) -> None:
    folder = copy_with_languages(trained_run, tmp_path / "model", "en", "zh")
    expected = dict(zip(LINES, translator(LINES), strict=True))
    server = ServerProcess(folder).wait_until_ready()
    url = server.url
    assert httpx.get(f"{url}/ready").status_code == 200
    targets = httpx.get(f"{url}/languages").json()[0]["targets"]
    assert targets == ["en", "zh", "zt"]  # zt by conversion of the script
    statuses: list[int] = []

    async def wait_for_responses() -> None:
        count = len(statuses)
        await until(lambda: len(statuses) > count + 20, what="further responses")

    async def reload_and_stop() -> None:
        clients = [asyncio.create_task(send_requests(url, expected, statuses)) for _ in range(2)]
        await until(lambda: statuses, what="a response")
        (old_worker,) = server.worker_pids
        shutil.rmtree(folder)
        copy_with_languages(trained_run, folder, "en", "zh")
        server.process.send_signal(signal.SIGHUP)
        await until(lambda: server.events("model reloaded"), what="a reload")
        assert old_worker not in server.worker_pids
        await wait_for_responses()
        (folder / "model.safetensors").write_bytes(b"broken")
        server.process.send_signal(signal.SIGHUP)
        await until(lambda: server.events("model reload failed"), what="a failed reload")
        await wait_for_responses()
        async with httpx.AsyncClient(timeout=300) as client:
            body = {"q": ". ".join(LINES * 3), "source": "en", "target": "zh"}
            long_requests = [asyncio.create_task(client.post(f"{url}/translate", json=body)) for _ in range(4)]
            await until(
                lambda: (
                    all(request.done() for request in long_requests)
                    or server.metric("regard_requests_in_flight") >= len(long_requests) + 1
                ),
                what="long requests in flight",
            )
            server.process.send_signal(signal.SIGTERM)
            await asyncio.gather(*clients)
            responses = await asyncio.gather(*long_requests)
        assert {response.status_code for response in responses} == {200}
        assert len({response.json()["translatedText"] for response in responses}) == 1

    run_in_thread(reload_and_stop())
    assert set(statuses) == {200}
    assert server.stop() == 0
    logged = [line["status"] for line in server.events("request") if line["endpoint"] == "/translate"]
    assert logged == [200] * (len(statuses) + 4)
    assert server.events("stopped")
