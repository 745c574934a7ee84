"""HTTP endpoints, limits and error responses, with a fake worker."""

import asyncio
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from regard.data.text import languages
from regard.data.text.tokenizer import Tokenizer
from regard.errors import UserError
from regard.serving.app import make_app
from regard.serving.config import Limits, ServingConfig, split_cores
from regard.serving.errors import ApiError
from regard.serving.keys import make_key
from regard.serving.messages import LoadRequest
from regard.serving.middleware import AdmissionGate, RequestSlots
from regard.serving.served_models import ServedModels
from regard.serving.service import Service
from regard.serving.telemetry import JsonFormatter, Metrics
from regard.serving.worker import WorkerDiedError
from tests.asynchronous import run_in_thread
from tests.serving.conftest import FakeWorker
from tests.serving.server_process import wait_until

OpenClient = Callable[..., Any]


@pytest.fixture(scope="module")
def open_client(tokenizer: Tokenizer) -> OpenClient:
    """Start an app with one fake worker per language pair."""

    @contextmanager
    def start(*pairs: tuple[str, str], limits: dict[str, Any] | None = None, **options: Any) -> Iterator[TestClient]:
        workers = {"-".join(pair): FakeWorker(tokenizer, pair) for pair in pairs or [("en", "zh")]}

        async def start_worker(request: LoadRequest) -> FakeWorker:
            if not workers[request.name].alive:
                raise WorkerDiedError("killed")
            return workers[request.name]

        load_requests = [LoadRequest(name, Path(name)) for name in workers]
        config = ServingConfig(load_requests, limits=Limits(**(limits or {})), **options)
        service = Service(config, ServedModels(load_requests, config.limits, Metrics(), start_worker))
        with TestClient(make_app(service), raise_server_exceptions=False) as client:
            wait_until(lambda: service.ready)
            client.workers = workers
            client.service = service
            yield client

    return start


@pytest.fixture(scope="module")
def client(open_client: OpenClient) -> Iterator[TestClient]:
    """An app with default options, shared by the tests."""
    with open_client() as client:
        yield client


def translate(client: TestClient, q: Any = "one two", **fields: Any) -> Any:
    return client.post("/translate", json={"q": q, "source": "en", "target": "zh"} | fields)


@contextmanager
def loading_client(tokenizer: Tokenizer, **options: Any) -> Iterator[tuple[TestClient, Callable[[], None]]]:
    """Start an app whose model is loaded only when the returned function is called."""
    loaded = threading.Event()

    async def start_worker(request: LoadRequest) -> FakeWorker:
        while not loaded.is_set():
            await asyncio.sleep(0.01)
        return FakeWorker(tokenizer)

    requests = [LoadRequest("en-zh", Path("en-zh"))]
    config = ServingConfig(requests, **options)
    service = Service(config, ServedModels(requests, config.limits, Metrics(), start_worker))

    def finish() -> None:
        loaded.set()
        wait_until(lambda: service.ready)

    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        yield client, finish
        loaded.set()


class RawRequest:
    """A request to the app without an HTTP client. The client may send its body or read the response only later."""

    def __init__(self, client: TestClient, body: object, address: str = "10.0.0.1") -> None:
        self.status: int | None = None
        self._body = json.dumps(body).encode()
        self.sent, self.read = asyncio.Event(), asyncio.Event()
        headers = [(b"host", b"x"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/translate", "query_string": b"", "headers": headers}
        scope |= {"client": (address, 1), "http_version": "1.1", "scheme": "http", "root_path": ""}
        self.response = client.portal.start_task_soon(client.app, scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._body is None:
            await asyncio.Event().wait()
        await self.sent.wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body}

    async def _send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)
        await self.read.wait()


# LibreTranslate's API


def test_json_forms_and_query_strings_are_accepted(client: TestClient) -> None:
    fields = {"q": "one two", "source": "en", "target": "zh", "format": "text", "api_key": "unused"}
    for response in (
        client.post("/translate", json=fields),
        client.post("/translate", data=fields),
        client.post("/translate", params=fields),
        client.post("/translate", files={name: (None, value) for name, value in fields.items()}),
        client.post("/translate", content=json.dumps(fields), headers={"content-type": "application/json;x=y"}),
        client.post("/translate", json=fields | {"secret": "unknown fields are ignored"}),
    ):
        assert (response.status_code, response.json()) == (200, {"translatedText": "ONE TWO"})
    repeated = client.post("/translate", data={"q": ["one", "two"], "source": "en", "target": "zh"})
    assert repeated.json() == {"translatedText": ["ONE", "TWO"]}
    lines = client.post("/translate", data={"q": "one\r\ntwo", "source": "en", "target": "zh"})
    assert lines.json() == {"translatedText": "ONE\nTWO"}


def test_lists_alternatives_and_detection_have_the_format_of_libretranslate(open_client: OpenClient) -> None:
    with open_client(("en", "zh"), ("de", "zh"), ("zh", "de")) as client:
        assert translate(client, ["one", "", "Two. Three."]).json() == {"translatedText": ["ONE", "", "TWO. THREE."]}
        assert translate(client, "one", alternatives=2).json() == {"translatedText": "ONE", "alternatives": []}
        texts = ["The house is old and small.", "Das Haus ist alt und klein."]
        body = translate(client, texts, source="auto", alternatives=1).json()
        assert [detection["language"] for detection in body["detectedLanguage"]] == ["en", "de"]
        assert all(50 < detection["confidence"] <= 100 for detection in body["detectedLanguage"])
        assert body["alternatives"] == [[], []]
        assert translate(client, "我喜欢苹果。", source="auto").json() == {
            "translatedText": "我喜欢苹果。",
            "detectedLanguage": {"confidence": 100.0, "language": "zh"},
        }
        ranked = client.post("/detect", data={"q": "Das Haus ist alt und klein."}).json()
        assert ranked[0]["language"] == "de"
        assert {detection["language"] for detection in ranked} == {"en", "de", "zh", "zt"}
        assert client.get("/languages").json() == [
            {"code": "de", "name": "German", "targets": ["de", "zh", "zt"]},
            {"code": "en", "name": "English", "targets": ["en", "zh", "zt"]},
            {"code": "zh", "name": "Chinese", "targets": ["de", "zh"]},
            {"code": "zt", "name": "Chinese (traditional)", "targets": ["de", "zt"]},
        ]


def test_health_readiness_and_settings(open_client: OpenClient) -> None:
    with open_client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").status_code == 200
        settings = client.get("/frontend/settings").json()
        assert (settings["charLimit"], settings["keyRequired"]) == (10_000, False)
        assert settings["language"]["target"] == {"code": "zh", "name": "Chinese"}
        client.service.draining = True
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()) == (503, {"error": "the server is shutting down"})
        assert ready.headers["connection"] == "close"
        assert client.get("/health").status_code == 200
        assert translate(client).json() == {"translatedText": "ONE TWO"}


# Error responses


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q": None}, "q"),
        ({"q": ""}, "missing q parameter"),
        ({"q": []}, "missing q parameter"),
        ({"q": 7}, "q must be a string or a list of strings"),
        ({"q": ["a", 7]}, "q must be a string or a list of strings"),
        ({"source": ""}, "missing source parameter"),
        ({"target": "de"}, "de is not supported; supported languages: en, zh"),
        ({"source": "zh", "target": "en"}, "en is not available as a target language from zh"),
        ({"format": "pdf"}, "format: input should be 'text' or 'html'"),
        ({"alternatives": -1}, "alternatives"),
        ({"alternatives": 5}, "alternatives (5) exceed the limit (4)"),
        ({"alternatives": "many"}, "alternatives"),
        ({"q": ["a"] * 129}, "request (129) exceeds text limit (128)"),
        ({"q": "a" * 10_001}, "request (10001) exceeds character limit (10000)"),
        ({"q": ["a" * 6000, "b" * 6000]}, "request (12000) exceeds character limit (10000)"),
    ],
)
def test_invalid_fields_are_rejected_with_a_message(fields: dict[str, Any], message: str, client: TestClient) -> None:
    response = translate(client, **fields)
    assert response.status_code == 400
    assert response.json().keys() == {"error"}
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"q"', "application/json"),
        (b"", "application/json"),
        (b"[]", "application/json"),
        (b'{"q": "\xff", "source": "en", "target": "zh"}', "application/json"),
        (b'{"q": "\\ud800", "source": "en", "target": "zh"}', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"q": ' + b"9" * 10_000 + b"}", "application/json"),
        (b"q=%ff&source=en&target=zh", "application/x-www-form-urlencoded"),
        (b"\xff\xfe", "application/x-www-form-urlencoded"),
        (b"&a=" * 5000, "application/x-www-form-urlencoded"),
        (b"--x\r\nbroken", "multipart/form-data; boundary=x"),
        (b"broken", "multipart/form-data"),
        (b"<q>one</q>", "application/xml"),
    ],
)
@pytest.mark.parametrize("path", ["/translate", "/detect", "/api/translate", "/api/embed", "/api/translate/stream"])
def test_malformed_bodies_are_rejected(body: bytes, content_type: str, path: str, client: TestClient) -> None:
    response = client.post(path, content=body, headers={"content-type": content_type})
    assert response.status_code == 400, response.text
    assert response.json().keys() == {"error"}


@pytest.mark.parametrize("path", ["/translate", "/api/translate"])
def test_invalid_json_and_invalid_terms_are_explained(path: str, client: TestClient) -> None:
    broken = client.post(path, content=b"{", headers={"content-type": "application/json"}).json()["error"]
    assert broken.startswith("Invalid request: the body is not valid JSON (")
    texts = {"q": "a", "source": "en", "target": "zh"} if path == "/translate" else {"texts": "a"}
    terms = client.post(path, json={**texts, "glossary": [{"source": "a"}]}).json()["error"]
    assert (
        terms == "Invalid request: glossary: each term must be a pair such as [\"cat\", \"猫\"], found {'source': 'a'}"
    )


def test_unknown_paths_and_methods_have_the_same_error_format(client: TestClient) -> None:
    assert (client.get("/nothing").status_code, client.get("/nothing").json()) == (404, {"error": "Not Found"})
    wrong_method = client.get("/translate")
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
    assert client.get("/redoc").status_code == 404
    assert client.get("/openapi.json").status_code == 200


def test_bodies_over_the_limit_are_rejected_with_and_without_content_length(open_client: OpenClient) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    with open_client(limits={"body_bytes": 1000}) as client:
        assert client.post("/translate", content=b"x" * 1001).status_code == 413
        chunked = client.post("/translate", content=chunks())
        assert (chunked.status_code, list(chunked.json())) == (413, ["error"])
        assert translate(client).status_code == 200


def test_keys_are_accepted_as_fields_and_headers(open_client: OpenClient, tmp_path: Path) -> None:
    (key, line), path = make_key("ann", 3), tmp_path / "keys"
    path.write_text(line)
    with open_client(keys=path) as client:
        missing, wrong = translate(client), translate(client, api_key="wrong")
        assert (missing.status_code, wrong.status_code) == (403, 403)
        assert wrong.json() == {"error": "Invalid API key"}
        assert list(missing.json()) == ["error"]
        assert translate(client, api_key=key).status_code == 200
        body = {"texts": "one", "source": "en", "target": "zh"}
        bearer = client.post("/api/translate", json=body, headers={"authorization": f"Bearer {key}"})
        assert bearer.status_code == 200
        assert client.post("/detect", params={"q": "one", "api_key": key}).status_code == 200
        exceeded = translate(client, api_key=key)
        assert (exceeded.status_code, list(exceeded.json())) == (429, ["error"])
        assert 1 <= int(exceeded.headers["retry-after"]) <= 20
        assert client.get("/languages").status_code == client.get("/metrics").status_code == 200
        assert client.get("/frontend/settings").json()["keyRequired"] is True
        path.write_text(line + make_key("bob")[1])
        client.portal.call(client.service.reload)
        assert translate(client, api_key=key).status_code == 429
        path.write_text("broken")
        client.portal.call(client.service.reload)
        assert translate(client, api_key="wrong").status_code == 403


def test_requests_that_are_not_processed_do_not_count_towards_the_rate_limit(
    tokenizer: Tokenizer, open_client: OpenClient, tmp_path: Path
) -> None:
    (key, line), path = make_key("ann", 2), tmp_path / "keys"
    path.write_text(line)
    with loading_client(tokenizer, keys=path) as (client, finish_loading):
        assert [translate(client, api_key=key).status_code for _ in range(4)] == [503] * 4
        finish_loading()
        assert [translate(client, api_key=key).status_code for _ in range(3)] == [200, 200, 429]
    release = asyncio.Event()
    with open_client(keys=path, limits={"queue": 1, "batch_items": 1}) as client:
        client.workers["en-zh"].before = lambda items: release.wait()
        sent = client.portal.start_task_soon(asyncio.to_thread, partial(translate, client, "One. Two.", api_key=key))
        wait_until(lambda: client.workers["en-zh"].batches)
        overloaded = [translate(client, api_key=key).json()["error"] for _ in range(3)]
        assert overloaded == ["1 sentences are queued already; try again later"] * 3
        client.portal.call(release.set)
        assert sent.result().status_code == 200
        assert [translate(client, api_key=key).status_code for _ in range(2)] == [200, 429]


def test_endpoints_report_that_models_are_loading(tokenizer: Tokenizer) -> None:
    with loading_client(tokenizer) as (client, finish_loading):
        for path in ("/languages", "/frontend/settings", "/api/models", "/ready"):
            response = client.get(path)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1"), path
        assert translate(client).json() == {"error": "the models are still loading; try again in a moment"}
        assert client.get("/health").status_code == 200
        finish_loading()
        assert [language["code"] for language in client.get("/languages").json()] == ["en", "zh", "zt"]
        assert client.get("/frontend/settings").json()["language"]["source"]["code"] == "en"


@pytest.mark.parametrize("dead", ["en-zh", "de-zh"])
def test_server_is_ready_only_if_the_workers_of_all_models_run(dead: str, open_client: OpenClient) -> None:
    with open_client(("en", "zh"), ("de", "zh")) as client:
        assert client.get("/ready").status_code == 200
        client.workers[dead].alive = False
        assert client.get("/ready").json() == {"error": "the models are not ready"}
        assert "regard_ready 0.0" in client.get("/metrics").text
        client.workers[dead].alive = True
        assert client.get("/ready").status_code == 200


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:5000", None, 200),
        ("LOCALHOST.", None, 200),
        ("demo.localhost", None, 200),
        ("127.0.0.1", None, 200),
        ("127.8.8.8:1", None, 200),
        ("[::1]:5000", None, 200),
        ("my.example:5000", None, 200),
        ("evil.example", None, 403),
        ("localhost.evil.example", None, 403),
        ("notlocalhost", None, 403),
        ("10.0.0.1", None, 403),
        ("[::2]", None, 403),
        ("[", None, 403),
        ("", None, 403),
        ("localhost", "http://localhost:3000", 200),
        ("localhost", "http://my.example", 200),
        ("localhost", "https://cors.example", 200),
        ("localhost", "http://cors.example", 403),
        ("localhost", "http://evil.example", 403),
        ("localhost", "null", 403),
        ("evil.example", "http://localhost", 403),
    ],
)
def test_names_of_other_sites_are_rejected(host: str, origin: str | None, status: int, open_client: OpenClient) -> None:
    headers = {"host": host} | ({"origin": origin} if origin is not None else {})
    with open_client(hosts=["my.example"], origins=["https://cors.example"]) as client:
        body = {"q": "one", "source": "en", "target": "zh"}
        response = client.post("/translate", json=body, headers=headers)
    assert response.status_code == status
    assert "example" not in response.text


def test_names_are_not_checked_without_a_list(open_client: OpenClient) -> None:
    with open_client() as client:
        headers = {"host": "any.example", "origin": "http://other.example"}
        assert client.get("/languages", headers=headers).status_code == 200
    with open_client(hosts=[], origins=["*"]) as client:
        assert client.get("/languages", headers={"host": "localhost", "origin": "http://a.example"}).status_code == 200
        assert client.get("/languages", headers={"host": "a.example"}).status_code == 403


def test_regional_language_tags_are_understood(open_client: OpenClient) -> None:
    with open_client(("en", "zh"), ("de", "zh")) as client:
        for source, target in (("en", "zh-CN"), ("en-US", "zh-Hans"), ("en_GB", "zh_Hans_CN"), ("EN", "ZH")):
            assert translate(client, "one", source=source, target=target).json() == {"translatedText": "ONE"}
            body = {"texts": "one", "source": source, "target": target}
            assert client.post("/api/translate", json=body).json()["model"] == "en-zh"
            assert client.post("/api/translate", json=body | {"model": "en-zh"}).status_code == 200
            assert client.post("/api/translate", json=body | {"model": "de-zh"}).status_code == 400
        assert translate(client, "one", source="zh-CN", target="zh-Hans").json() == {"translatedText": "one"}
        assert translate(client, "Das Haus ist alt.", source="auto", target="zh-CN").status_code == 200
        unknown = translate(client, "one", source="auto", target="pt-BR")
        assert unknown.json() == {"error": "pt-BR is not supported; supported languages: de, en, zh, zt"}


def test_models_of_chinese_have_both_scripts(open_client: OpenClient) -> None:
    with open_client(("en", "zh"), ("zh", "en")) as client:
        targets = {language["code"]: language["targets"] for language in client.get("/languages").json()}
        assert targets == {"en": ["en", "zh", "zt"], "zh": ["en", "zh"], "zt": ["en", "zt"]}
        for tag, code in (
            ("zt", "zt"),
            ("zh-Hant", "zt"),
            ("zh_Hant_TW", "zh-TW"),
            ("zh-TW", "zh-TW"),
            ("ZH-hk", "zh-HK"),
        ):
            for source, target in (("en", tag), (tag, "en")):
                assert translate(client, "one", source=source, target=target).json() == {"translatedText": "ONE"}
                pair = (source, code) if target == tag else (code, target)
                own = [{code: "zh"}.get(one, one) for one in pair]
                assert client.workers["-".join(own)].options[-1]["languages"] == pair
                body = {"texts": "one", "source": source, "target": target}
                assert client.post("/api/translate", json=body).json()["model"] == "-".join(own)
                assert client.post("/api/translate", json=body | {"model": "-".join(own)}).status_code == 200
                assert client.workers["-".join(own)].options[-1]["languages"] == pair
            unchanged = {"translatedText": "一個", "detectedLanguage": {"confidence": 100.0, "language": "zt"}}
            assert translate(client, "一個", source="auto", target=tag).json() == unchanged
        assert translate(client, "one").json() == {"translatedText": "ONE"}
        assert "languages" not in client.workers["en-zh"].options[-1]
        other = translate(client, "一個", source="zh", target="zt").json()["error"]
        assert other.startswith("zt is not available as a target language from zh; available: en to zh, en to zt")
        body = {"texts": "one", "model": "en-zh", "source": "zt"}
        assert client.post("/api/translate", json=body).json() == {
            "error": "model en-zh does not translate from or into zt"
        }
    with open_client(("en", "zh"), ("en", "zt")) as client:  # a model of its own
        assert translate(client, "one", target="zh-TW").json() == {"translatedText": "ONE"}
        assert not client.workers["en-zh"].batches and "languages" not in client.workers["en-zt"].options[-1]


def test_the_script_of_chinese_is_detected(open_client: OpenClient) -> None:
    with open_client(("zh", "en")) as client:
        for text, code in (("這個蘋果很甜", "zt"), ("这个苹果很甜", "zh"), ("一二三", "zh")):
            detected = translate(client, text, source="auto", target="en").json()["detectedLanguage"]
            assert (detected["language"], client.post("/detect", data={"q": text}).json()[0]["language"]) == (
                code,
                code,
            )
            assert client.workers["zh-en"].options[-1].get("languages") == (("zt", "en") if code == "zt" else None)


def test_text_in_a_language_without_a_model_is_not_taken_for_the_target_language(open_client: OpenClient) -> None:
    with open_client(("en", "zh")) as client:
        error = "en is not available as a target language from zh; available: en to zh, en to zt"
        assert translate(client, "这个苹果很甜", source="auto", target="en").json() == {"error": error}
        unchanged = translate(client, "The house is old.", source="auto", target="en").json()
        assert (unchanged["translatedText"], unchanged["detectedLanguage"]["language"]) == ("The house is old.", "en")


def test_a_missing_package_for_the_scripts_of_chinese_is_named(
    open_client: OpenClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opencc", None)
    monkeypatch.setattr(languages, "can_convert_scripts", lambda: False)
    languages.script_converter.cache_clear()
    with open_client() as client:
        assert [language["code"] for language in client.get("/languages").json()] == ["en", "zh"]
        message = "converting between simplified and traditional Chinese needs the package opencc; install it with "
        for path, body in (
            ("/translate", {"q": "one", "source": "en", "target": "zt"}),
            ("/api/translate", {"texts": "one", "source": "en", "target": "zh-TW"}),
            ("/api/translate", {"texts": "one", "model": "en-zh", "target": "zt"}),
        ):
            response = client.post(path, json=body)
            assert (response.status_code, response.json()) == (
                400,
                {"error": f"{message}pip install 'regard[chinese]'"},
            )


@pytest.mark.parametrize("path", ["/translate", "/api/translate", "/api/translate/stream"])
@pytest.mark.parametrize("format", ["text", "html"])
def test_number_of_sentences_is_limited(path: str, format: str, open_client: OpenClient) -> None:
    with open_client(limits={"sentences": 5}) as client:
        for count, status in ((5, 200), (6, 400)):
            texts = ["One. " * (count - 1), "Two."]
            body = {"q": texts, "source": "en", "target": "zh", "format": format}
            response = client.post(path, json=body if path == "/translate" else {"texts": texts})
            assert response.status_code == status
        assert response.json() == {"error": "Invalid request: request (6) exceeds sentence limit (5)"}


def test_cross_origin_requests_are_allowed_only_for_configured_origins(open_client: OpenClient) -> None:
    headers = {"origin": "https://a.example"}
    with open_client() as client:
        assert "access-control-allow-origin" not in client.get("/languages", headers=headers).headers
    with open_client(origins=["https://a.example"]) as client:
        assert client.get("/languages", headers=headers).headers["access-control-allow-origin"] == "https://a.example"
        other = client.get("/languages", headers={"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


def test_responses_have_security_headers(client: TestClient) -> None:
    headers = client.get("/health").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in headers["content-security-policy"]


def test_requests_over_the_concurrency_limit_are_rejected(open_client: OpenClient) -> None:
    release = asyncio.Event()
    with open_client(limits={"concurrent": 1}) as client:
        client.workers["en-zh"].before = lambda items: release.wait()
        running = client.portal.start_task_soon(asyncio.to_thread, translate, client)
        wait_until(lambda: client.workers["en-zh"].batches)
        rejected = translate(client)
        assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
        assert client.get("/health").status_code == 200
        client.portal.call(release.set)
        assert running.result().status_code == 200
        assert translate(client).status_code == 200


BODY = {"q": "one", "source": "en", "target": "zh"}


def test_slow_senders_and_slow_readers_hold_no_slot(open_client: OpenClient) -> None:
    with open_client(limits={"concurrent": 1}) as client:
        slow_senders = [RawRequest(client, BODY) for _ in range(3)]
        slow_reader = RawRequest(client, BODY)
        client.portal.call(slow_reader.sent.set)
        wait_until(lambda: slow_reader.status)
        assert translate(client).status_code == 200
        for request in (*slow_senders, slow_reader):
            client.portal.call(request.read.set)
            client.portal.call(request.sent.set)
            request.response.result(20)
            assert request.status == 200


def test_few_requests_are_admitted_per_iteration_and_short_ones_first() -> None:
    async def main() -> tuple[list[str], int]:
        gate, admitted, most = AdmissionGate(per_iteration=2), list[str](), 0

        async def send(name: str, client: str, size: int) -> None:
            await gate.enter(client, size)
            admitted.append(name)

        large = [asyncio.create_task(send(f"large {i}", "a", 1000)) for i in range(20)]
        others = [asyncio.create_task(send("short", "a", 0)), asyncio.create_task(send("other", "b", 1000))]
        await asyncio.sleep(0)  # all requests wait
        large[-1].cancel()
        while not all(task.done() for task in large + others):
            before = len(admitted)
            await asyncio.sleep(0)
            most = max(most, len(admitted) - before)
        assert not gate._queue._clients, "the cancelled request was removed"
        return admitted, most

    admitted, most = run_in_thread(main())
    assert most == 2
    assert admitted.index("other") < 4
    assert admitted.index("short") < 4
    assert len(admitted) == 21


def test_clients_share_the_slots() -> None:
    slots = RequestSlots(4)
    ends = [slots.take("ann") for _ in range(4)]
    with pytest.raises(ApiError, match="processing 4 requests already"):
        slots.take("ann")
    others = [slots.take("bob") for _ in range(2)]  # half of the slots
    for client in ("ann", "bob"):
        with pytest.raises(ApiError):
            slots.take(client)
    others.append(slots.take("eve"))  # a third
    with pytest.raises(ApiError):
        slots.take("eve")
    for end in (*others, *ends[:2]):
        end()
        end()  # has no effect
    ends += [slots.take("ann"), slots.take("ann")]
    with pytest.raises(ApiError):
        slots.take("ann")


@pytest.mark.parametrize("by_key", [True, False])
def test_keys_or_addresses_take_turns(by_key: bool, open_client: OpenClient, tmp_path: Path) -> None:
    (ann, ann_line), (bob, bob_line) = make_key("ann"), make_key("bob")
    (tmp_path / "keys").write_text(ann_line + bob_line)
    options = {"keys": tmp_path / "keys"} if by_key else {}
    keys = {"ann": ann, "bob": bob} if by_key else {"ann": None, "bob": None}
    addresses = {"ann": "10.0.0.1", "bob": "10.0.0.1" if by_key else "10.0.0.2"}
    release = asyncio.Event()
    with open_client(limits={"batch_items": 1}, **options) as client:
        worker, batcher = client.workers["en-zh"], client.service.models.all[0].batcher
        worker.before = lambda items: release.wait()
        for length, (name, text) in enumerate(
            [("ann", "one"), ("ann", "One. " * 20), ("ann", "Two. " * 20), ("bob", "Three.")]
        ):
            request = RawRequest(client, BODY | {"q": text, "api_key": keys[name]}, addresses[name])
            client.portal.call(request.sent.set)
            client.portal.call(request.read.set)
            wait_until(lambda: worker.batches and len(batcher._queue) == (0, 20, 40, 41)[length])  # noqa: B023
        client.portal.call(release.set)
        request.response.result(20)
    assert worker.batches.index(["Three."]) <= 2


def test_exceeded_deadlines_return_504(open_client: OpenClient) -> None:
    with open_client(limits={"deadline": 0.05}) as client:
        client.workers["en-zh"].before = lambda items: asyncio.Event().wait()
        response = translate(client)
        assert response.status_code == 504
        assert "no answer within 0.05 seconds" in response.json()["error"]


def test_unexpected_errors_do_not_reveal_texts(open_client: OpenClient, monkeypatch: Any) -> None:
    with open_client() as client:
        monkeypatch.setattr(client.service, "check_request", lambda *_: 1 / 0)
        response = translate(client, "secret")
        assert response.status_code == 500
        assert "secret" not in response.text
        assert list(response.json()) == ["error"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert 'regard_requests_total{endpoint="/translate",status="500"} 1.0' in client.get("/metrics").text


# Our API


def test_own_api_returns_sentences_and_selects_models_by_name(open_client: OpenClient) -> None:
    with open_client(("en", "zh"), ("de", "zh")) as client:
        body = {"texts": ["One. Two.", "three"], "n_best": 2, "model": "de-zh"}
        response = client.post("/api/translate", json=body).json()
        assert response["model"] == "de-zh"
        assert [text["text"] for text in response["texts"]] == ["ONE. TWO.", "THREE"]
        assert [sentence["source"] for sentence in response["texts"][0]["sentences"]] == ["One.", "Two."]
        translations = response["texts"][1]["sentences"][0]["translations"]
        assert translations == [{"text": "THREE", "score": -1.0}] * 2
        whole = client.post("/api/translate", json={"texts": "One. Two.", "split": False}).json()
        assert [sentence["source"] for sentence in whole["texts"][0]["sentences"]] == ["One. Two."]
        for invalid in (
            {"model": "none"},
            {"source": "en"},
            {"model": "de-zh", "source": "en"},
            {"text": "one"},
            {"n_best": 6},
            {"texts": []},
        ):
            assert client.post("/api/translate", json={"texts": "one"} | invalid).status_code == 400
        names = [model["name"] for model in client.get("/api/models").json()["models"]]
        assert names == ["en-zh", "de-zh"]
        assert client.post("/api/embed", json={"texts": ["one", "three"]}).json()["vectors"] == [[3.0], [5.0]]
        assert client.post("/api/embed", json={"texts": "one " * 1000}).status_code == 400


def test_streams_send_one_event_per_sentence_and_a_final_event(open_client: OpenClient) -> None:
    with open_client() as client:
        body = {"texts": ["One. Two.", "three"]}
        with client.stream("POST", "/api/translate/stream", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            events = response.read().decode().strip().split("\n\n")
        sentences = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
        assert [(one["text"], one["sentence"], one["source"]) for one in sentences] == [
            (0, 0, "One."),
            (0, 1, "Two."),
            (1, 0, "three"),
        ]
        assert [one["translations"][0]["text"] for one in sentences] == ["ONE.", "TWO.", "THREE"]
        assert events[-1] == "event: done\ndata: {}"

        def fail(items: list[str]) -> None:
            if "Two." in items:
                raise UserError("two is wrong")

        client.workers["en-zh"].before = fail
        with client.stream("POST", "/api/translate/stream", json=body) as response:
            last = response.read().decode().strip().split("\n\n")[-1]
        assert last == 'event: error\ndata: {"error": "two is wrong"}'
        assert client.post("/api/translate/stream", json={"texts": "Two."}).status_code == 400


def test_long_sentences_have_a_warning(open_client: OpenClient, caplog: pytest.LogCaptureFixture) -> None:
    long = "One two three four " * 6
    expected = re.compile(r"\d+ tokens, but the longest training source has 12; the translation may be incomplete")
    logging.getLogger("regard.serving").propagate = True
    with caplog.at_level(logging.INFO, "regard.serving"), open_client() as client:
        assert "warnings" not in translate(client, "One. Two.").json()
        (warning,) = translate(client, ["one", f"One. {long}"]).json()["warnings"]
        answer = client.post("/api/translate", json={"texts": f"One. {long}"}).json()
        first, second = answer["texts"][0]["sentences"]
        with client.stream("POST", "/api/translate/stream", json={"texts": f"One. {long}"}) as response:
            events = response.read().decode().strip().split("\n\n")
    assert expected.fullmatch(warning.removeprefix("text 2, sentence 2: "))
    assert "warning" not in first
    assert expected.fullmatch(second["warning"])
    assert json.loads(events[1].removeprefix("data: "))["warning"] == second["warning"]
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [line.get("long_sentences") for line in lines if line["event"] == "request"] == [None, 1, 1, 1]


def test_page_receives_the_sentences_of_a_text(client: TestClient) -> None:
    body = {"text": " One two.  Three?\nfour", "model": "en-zh"}
    answer = client.post("/api/inspect/sentences", json=body).json()
    assert [sentence["text"] for sentence in answer["sentences"]] == ["One two.", "Three?", "four"]
    assert all(sentence["tokens"] > 0 and not sentence["divided"] for sentence in answer["sentences"])
    assert answer["longest"] == 12
    assert client.post("/api/inspect/sentences", json={"text": "one", "model": "none"}).status_code == 400
    assert client.post("/api/inspect/sentences", json={"text": "x" * 10_001}).status_code == 400


# Log and metrics


def test_metrics_count_requests_and_errors(open_client: OpenClient) -> None:
    with open_client() as client:
        translate(client, ["one", "two"])
        translate(client, target="de")
        text = client.get("/metrics").text
        assert 'regard_requests_total{endpoint="/translate",status="200"} 1.0' in text
        assert 'regard_requests_total{endpoint="/translate",status="400"} 1.0' in text
        assert 'regard_rejects_total{reason="bad"} 1.0' in text


@pytest.mark.parametrize("log_text", [False, True])
def test_log_contains_texts_only_with_log_text(
    log_text: bool, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("regard.serving").propagate = True
    with caplog.at_level(logging.INFO, "regard.serving"), open_client(log_text=log_text) as client:
        translate(client, "one secret")
        translate(client, "one secret", target="de")
        translate(client, "one", target="secret")
        client.post("/api/translate", json={"texts": "one", "model": "secret"})
    lines = [JsonFormatter().format(record) for record in caplog.records]
    requests = [json.loads(line) for line in lines if '"request"' in line]
    assert [request["status"] for request in requests] == [200, 400, 400, 400]
    assert [requests[2]["target"], requests[3]["model"]] == ["unknown", "unknown"]
    assert requests[0]["characters"] == 10
    assert any("secret" in line for line in lines) == log_text


@pytest.mark.parametrize("is_loading", [True, False])
def test_log_does_not_repeat_names_that_clients_send(
    is_loading: bool, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("regard.serving").propagate = True
    with caplog.at_level(logging.INFO), loading_client(tokenizer) as (client, finish_loading):
        if not is_loading:
            finish_loading()
        for path in (
            "translate",
            "translate/stream",
            "embed",
            "inspect/attention",
            "inspect/beam",
            "inspect/positions",
        ):
            text = {"texts": "one"} if "inspect" not in path else {"text": "one"} if "positions" not in path else {}
            for model in ("secret", "zh-secret"):
                response = client.post(f"/api/{path}", json=text | {"model": model})
                assert response.status_code == (503 if is_loading else 400), response.text
        form = {"files": {"image": b"x"}, "data": {"model": "secret"}}
        client.post("/api/classify", **form)
        client.post("/api/inspect/image", **form)
        translate(client, source="secret", target="zh-secret")
        client.request("SECRET", "/languages")
        client.get("/secret", headers={"host": "secret"})
    lines = [JsonFormatter().format(record) for record in caplog.records if record.name.startswith("regard")]
    assert len([line for line in lines if '"request"' in line]) == 17
    assert not [line for line in lines if "secret" in line.lower()]


def test_log_contains_types_but_not_messages_of_exceptions() -> None:
    try:
        int("secret")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "event", (), (type(error), error, None))
    line = json.loads(JsonFormatter().format(record))
    assert (line["event"], line["error"]) == ("event", "ValueError")
    assert "secret" not in json.dumps(line)


def test_documentation_lists_all_limits() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- limits -->\n(.*?)<!-- /limits -->", guide, re.S)
    rows = [tuple(cell.strip() for cell in row.split("|")[1:4]) for row in table.splitlines()[2:]]
    fields = Limits.model_fields.items()
    assert rows == [(f"`{name}`", str(field.default), field.description) for name, field in fields]


def test_default_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, models, expected in ((1, 1, (2, 1)), (2, 1, (2, 1)), (16, 1, (2, 8)), (16, 2, (2, 4)), (2, 3, (2, 1))):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)), raising=False)  # noqa: B023
        assert split_cores(models) == expected


def test_language_identifier_is_loaded_once_by_concurrent_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    load_identifier = languages._load_identifier
    loads: list[int] = []
    second_thread_waits = threading.Event()

    def load() -> Any:
        loads.append(1)
        assert second_thread_waits.wait(10)
        return load_identifier()

    monkeypatch.setattr(languages, "_load_identifier", load)
    detector = languages.LanguageDetector()
    first = threading.Thread(target=detector.load)
    first.start()
    wait_until(lambda: loads)
    threading.Timer(0.05, second_thread_waits.set).start()
    best, _ = detector.rank("我喜欢苹果。", ["de", "zh"])  # waits for the first thread
    first.join()
    assert best[0] == "zh"
    assert len(loads) == 1


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("gzip, deflate", "gzip"), ("br;q=1.0, GZIP; q=0.5", "gzip"), ("gzip;q=0", None), ("identity", None), ("", None)],
)
def test_files_of_the_page_are_compressed_for_clients_that_accept_it(
    client: TestClient, accepted: str, encoding: str | None
) -> None:
    plain = client.get("/page/bundle.js", headers={"accept-encoding": "identity"})
    answer = client.get("/page/bundle.js", headers={"accept-encoding": accepted})
    assert answer.headers.get("content-encoding") == encoding
    assert answer.content == plain.content  # the client decompresses it
    assert (int(answer.headers["content-length"]) < len(plain.content) / 2) == (encoding == "gzip")
    again = client.get(
        "/page/bundle.js", headers={"accept-encoding": accepted, "if-none-match": answer.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
