"""The endpoints, their limits and their refusals, with a stand-in for the model."""

import asyncio
import contextlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from regard.data.text.tokenizer import Tokenizer
from regard.errors import UserError
from regard.serving import language_detection as languages
from regard.serving.app import make_app
from regard.serving.config import Limits, ServingConfig
from regard.serving.keys import make_key
from regard.serving.logs import JsonLines
from regard.serving.messages import LoadRequest
from regard.serving.metrics import Metrics
from regard.serving.served_models import Models
from regard.serving.service import Service
from tests.serving.conftest import Echo
from tests.serving.running import wait_until

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def open_client(tokenizer: Tokenizer) -> Open:
    """Starts an app with a stand-in for each pair of languages."""

    @contextmanager
    def start(*pairs: tuple[str, str], limits: dict[str, Any] | None = None, **offer: Any) -> Iterator[TestClient]:
        echoes = {"-".join(pair): Echo(tokenizer, pair) for pair in pairs or [("en", "zh")]}

        async def worker(order: LoadRequest) -> Echo:
            return echoes[order.name]

        bounds = Limits(**(limits or {}))
        orders = [LoadRequest(name, Path(name)) for name in echoes]
        service = Service(ServingConfig(orders, limits=bounds, **offer), Models(orders, bounds, Metrics(), worker))
        with TestClient(make_app(service), raise_server_exceptions=False) as client:
            wait_until(lambda: service.ready)
            client.echoes = echoes
            client.service = service
            yield client

    return start


@pytest.fixture(scope="module")
def client(open_client: Open) -> Iterator[TestClient]:
    """An app with everything as it is by default, which tests share."""
    with open_client() as one:
        yield one


def ask(client: TestClient, q: Any = "one two", **fields: Any) -> Any:
    return client.post("/translate", json={"q": q, "source": "en", "target": "zh"} | fields)


def test_every_way_to_send_fields_is_understood(open_client: Open) -> None:
    fields = {"q": "one two", "source": "en", "target": "zh", "format": "text", "api_key": "unused"}
    with open_client() as client:
        for answer in (
            client.post("/translate", json=fields),
            client.post("/translate", data=fields),
            client.post("/translate", params=fields),
            client.post("/translate", files={name: (None, value) for name, value in fields.items()}),
            client.post("/translate", content=json.dumps(fields), headers={"content-type": "application/json;x=y"}),
            client.post("/translate", json=fields | {"secret": "what other clients add"}),
        ):
            assert (answer.status_code, answer.json()) == (200, {"translatedText": "ONE TWO"})
        several = client.post("/translate", data={"q": ["one", "two"], "source": "en", "target": "zh"})
        assert several.json() == {"translatedText": ["ONE", "TWO"]}
        lines = client.post("/translate", data={"q": "one\r\ntwo", "source": "en", "target": "zh"})
        assert lines.json() == {"translatedText": "ONE\nTWO"}


def test_lists_alternatives_and_detection_have_libretranslates_form(open_client: Open) -> None:
    with open_client(("en", "zh"), ("de", "zh"), ("zh", "de")) as client:
        assert ask(client, ["one", "", "Two. Three."]).json() == {"translatedText": ["ONE", "", "TWO. THREE."]}
        assert ask(client, "one", alternatives=2).json() == {"translatedText": "ONE", "alternatives": []}
        auto = ask(
            client, ["The house is old and small.", "Das Haus ist alt und klein."], source="auto", alternatives=1
        )
        found = auto.json()
        assert [one["language"] for one in found["detectedLanguage"]] == ["en", "de"]
        assert all(50 < one["confidence"] <= 100 for one in found["detectedLanguage"])
        assert found["alternatives"] == [[], []]
        assert ask(client, "我喜欢苹果。", source="auto").json() == {
            "translatedText": "我喜欢苹果。",
            "detectedLanguage": {"confidence": 100.0, "language": "zh"},
        }
        ranked = client.post("/detect", data={"q": "Das Haus ist alt und klein."}).json()
        assert ranked[0]["language"] == "de"
        assert {one["language"] for one in ranked} == {"en", "de", "zh"}
        assert client.get("/languages").json() == [
            {"code": "de", "name": "German", "targets": ["de", "zh"]},
            {"code": "en", "name": "English", "targets": ["en", "zh"]},
            {"code": "zh", "name": "Chinese", "targets": ["de", "zh"]},
        ]


def test_health_readiness_and_settings(open_client: Open) -> None:
    with open_client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").status_code == 200
        settings = client.get("/frontend/settings").json()
        assert (settings["charLimit"], settings["keyRequired"]) == (10_000, False)
        assert settings["language"]["target"] == {"code": "zh", "name": "Chinese"}
        client.service.draining = True
        late = client.get("/ready")
        assert (late.status_code, late.json()) == (503, {"error": "draining"})
        assert late.headers["connection"] == "close"
        assert client.get("/health").status_code == 200
        assert ask(client).json() == {"translatedText": "ONE TWO"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"q": None}, "q"),
        ({"q": ""}, "missing q parameter"),
        ({"q": []}, "missing q parameter"),
        ({"q": 7}, "q should be a text, or a list of texts"),
        ({"q": ["a", 7]}, "q should be a text, or a list of texts"),
        ({"source": ""}, "missing source parameter"),
        ({"target": "de"}, "de is not supported; the languages here are en, zh"),
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
def test_what_is_wrong_is_a_400_that_says_what(fields: dict[str, Any], said: str, client: TestClient) -> None:
    answer = ask(client, **fields)
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}
    assert said in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "kind"),
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
def test_malformed_bodies_are_a_400(body: bytes, kind: str, path: str, client: TestClient) -> None:
    answer = client.post(path, content=body, headers={"content-type": kind})
    assert answer.status_code == 400, answer.text
    assert answer.json().keys() == {"error"}


def test_unknown_paths_and_methods_have_the_same_form(open_client: Open) -> None:
    with open_client() as client:
        assert (client.get("/nothing").status_code, client.get("/nothing").json()) == (404, {"error": "Not Found"})
        assert client.get("/translate").status_code == 405
        assert client.get("/docs").status_code == 404
        assert client.get("/openapi.json").status_code == 200


def test_a_body_over_the_limit_is_a_413_also_where_it_does_not_say_so(open_client: Open) -> None:
    def drip() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    with open_client(limits={"body_bytes": 1000}) as client:
        assert client.post("/translate", content=b"x" * 1001).status_code == 413
        dripping = client.post("/translate", content=drip())
        assert (dripping.status_code, list(dripping.json())) == (413, ["error"])
        assert ask(client).status_code == 200


def test_keys_are_asked_for_in_fields_or_headers(open_client: Open, tmp_path: Path) -> None:
    (ann, line), path = make_key("ann", 3), tmp_path / "keys"
    path.write_text(line)
    with open_client(keys=path) as client:
        none, wrong = ask(client), ask(client, api_key="wrong")
        assert (none.status_code, wrong.status_code) == (403, 403)
        assert wrong.json() == {"error": "Invalid API key"}
        assert list(none.json()) == ["error"]
        assert ask(client, api_key=ann).status_code == 200
        asked = {"texts": "one", "source": "en", "target": "zh"}
        bearer = client.post("/api/translate", json=asked, headers={"authorization": f"Bearer {ann}"})
        assert bearer.status_code == 200
        assert client.post("/detect", params={"q": "one", "api_key": ann}).status_code == 200
        over = ask(client, api_key=ann)
        assert (over.status_code, list(over.json())) == (429, ["error"])
        assert 1 <= int(over.headers["retry-after"]) <= 20
        assert client.get("/languages").status_code == client.get("/metrics").status_code == 200
        assert client.get("/frontend/settings").json()["keyRequired"] is True
        path.write_text(line + make_key("bob")[1])
        client.portal.call(client.service.reload)
        assert ask(client, api_key=ann).status_code == 429
        path.write_text("broken")
        client.portal.call(client.service.reload)
        assert ask(client, api_key="wrong").status_code == 403


def test_other_sites_are_let_in_only_where_that_was_asked_for(open_client: Open) -> None:
    headers = {"origin": "https://a.example"}
    with open_client() as client:
        assert "access-control-allow-origin" not in client.get("/languages", headers=headers).headers
    with open_client(origins=["https://a.example"]) as client:
        assert client.get("/languages", headers=headers).headers["access-control-allow-origin"] == "https://a.example"
        other = client.get("/languages", headers={"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


def test_browsers_are_told_to_be_careful(open_client: Open) -> None:
    with open_client() as client:
        headers = client.get("/health").headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'self'" in headers["content-security-policy"]


def test_more_requests_at_once_than_allowed_are_a_429(open_client: Open) -> None:
    gate = asyncio.Event()
    with open_client(limits={"concurrent": 1}) as client:
        client.echoes["en-zh"].before = lambda items: gate.wait()
        slow = client.portal.start_task_soon(asyncio.to_thread, ask, client)
        wait_until(lambda: client.echoes["en-zh"].batches)
        refused = ask(client)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert client.get("/health").status_code == 200
        client.portal.call(gate.set)
        assert slow.result().status_code == 200
        assert ask(client).status_code == 200


def test_a_deadline_is_a_504(open_client: Open) -> None:
    with open_client(limits={"deadline": 0.05}) as client:
        client.echoes["en-zh"].before = lambda items: asyncio.sleep(0.08)
        late = ask(client)
        assert late.status_code == 504
        assert "no answer within 0.05 seconds" in late.json()["error"]


def test_a_mistake_of_ours_is_a_500_that_says_nothing_of_the_text(open_client: Open, monkeypatch: Any) -> None:
    with open_client() as client:
        monkeypatch.setattr(client.service, "check_texts", lambda *a: 1 / 0)
        answer = ask(client, "secret")
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert list(answer.json()) == ["error"]


def test_the_own_api_gives_sentences_and_finds_models_by_name(open_client: Open) -> None:
    with open_client(("en", "zh"), ("de", "zh")) as client:
        asked = {"texts": ["One. Two.", "three"], "n_best": 2, "model": "de-zh"}
        answer = client.post("/api/translate", json=asked).json()
        assert answer["model"] == "de-zh"
        assert [text["text"] for text in answer["texts"]] == ["ONE. TWO.", "THREE"]
        assert [s["source"] for s in answer["texts"][0]["sentences"]] == ["One.", "Two."]
        assert [t["score"] for t in answer["texts"][1]["sentences"][0]["translations"]] == [-1, -1]
        whole = client.post("/api/translate", json={"texts": "One. Two.", "split": False}).json()
        assert [s["source"] for s in whole["texts"][0]["sentences"]] == ["One. Two."]
        for wrong in (
            {"model": "none"},
            {"source": "en"},
            {"model": "de-zh", "source": "en"},
            {"text": "one"},
            {"n_best": 6},
            {"texts": []},
        ):
            assert client.post("/api/translate", json={"texts": "one"} | wrong).status_code == 400
        names = [model["name"] for model in client.get("/api/models").json()["models"]]
        assert names == ["en-zh", "de-zh"]
        assert client.post("/api/embed", json={"texts": ["one", "three"]}).json()["vectors"] == [[3.0], [5.0]]
        assert client.post("/api/embed", json={"texts": "one " * 1000}).status_code == 400


def test_a_stream_has_an_event_for_every_sentence_and_an_end(open_client: Open) -> None:
    with open_client() as client:
        asked = {"texts": ["One. Two.", "three"]}
        with client.stream("POST", "/api/translate/stream", json=asked) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            events = answer.read().decode().strip().split("\n\n")
        sent = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
        assert [(one["text"], one["sentence"], one["source"]) for one in sent] == [
            (0, 0, "One."),
            (0, 1, "Two."),
            (1, 0, "three"),
        ]
        assert [one["translations"][0]["text"] for one in sent] == ["ONE.", "TWO.", "THREE"]
        assert events[-1] == "event: done\ndata: {}"

        def fail(items: list[str]) -> None:
            if "Two." in items:
                raise UserError("two is wrong")

        client.echoes["en-zh"].before = fail
        with client.stream("POST", "/api/translate/stream", json=asked) as answer:
            last = answer.read().decode().strip().split("\n\n")[-1]
        assert last == 'event: error\ndata: {"error": "two is wrong"}'
        assert client.post("/api/translate/stream", json={"texts": "Two."}).status_code == 400


def test_metrics_count_requests_batches_and_refusals(open_client: Open) -> None:
    with open_client() as client:
        ask(client, ["one", "two"])
        ask(client, target="de")
        text = client.get("/metrics").text
        assert 'regard_requests_total{endpoint="/translate",status="200"} 1.0' in text
        assert 'regard_requests_total{endpoint="/translate",status="400"} 1.0' in text
        assert 'regard_rejects_total{reason="bad"} 1.0' in text


def test_the_log_holds_no_text_unless_it_is_asked_for(open_client: Open, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("regard.serving").propagate = True
    for asked in (False, True):
        caplog.clear()
        with caplog.at_level(logging.INFO, "regard.serving"), open_client(log_text=asked) as client:
            ask(client, "one secret")
            ask(client, "one secret", target="de")
            ask(client, "one", target="secret")
            client.post("/api/translate", json={"texts": "one", "model": "secret"})
        lines = [JsonLines().format(record) for record in caplog.records]
        requests = [json.loads(line) for line in lines if '"request"' in line]
        assert [one["status"] for one in requests] == [200, 400, 400, 400]
        assert [requests[2]["target"], requests[3]["model"]] == ["unknown", "unknown"]
        assert requests[0]["characters"] == 10
        assert any("secret" in line for line in lines) == asked


def test_an_errors_message_stays_out_of_the_log() -> None:
    try:
        int("secret")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "event", (), (type(error), error, None))
    line = json.loads(JsonLines().format(record))
    assert (line["event"], line["error"]) == ("event", "ValueError")
    assert "secret" not in json.dumps(line)


def test_the_table_of_limits_is_that_of_the_limits() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- limits -->\n(.*?)<!-- /limits -->", guide, re.S)
    rows = [tuple(cell.strip() for cell in row.split("|")[1:4]) for row in table.splitlines()[2:]]
    known = Limits.model_fields.items()
    assert rows == [(f"`{name}`", str(field.default), field.description) for name, field in known]


def test_the_tables_of_languages_are_read_once_whoever_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    meeting = threading.Barrier(2)
    read_tables = languages._read_tables

    def read() -> Any:
        reads.append(1)
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)  # where both are let in, they meet here
        return read_tables()

    monkeypatch.setattr(languages, "_read_tables", read)
    detector = languages.Detector()
    other = threading.Thread(target=detector.load)
    other.start()
    best, _ = detector.rank("我喜欢苹果。", ["de", "zh"])
    other.join()
    assert best[0] == detector.rank("我喜欢苹果。", ["de", "zh"])[0][0] == "zh"
    assert len(reads) == 1
