"""The client of LibreTranslate's API: languages, batches and repeated requests, with scripted answers of a server."""

import io
import json
from email.message import Message
from typing import Any
from urllib.error import HTTPError

import pytest

from regard.errors import UserError
from regard.serving import client as module
from regard.serving.client import BATCH_LINES, Client

LANGUAGES = [{"code": "en", "targets": ["en", "zh", "de"]}, {"code": "zh", "targets": ["en"]}, {"code": "de"}]


class ScriptedClient(Client):
    """A client whose requests are answered from a list; each answer is a value or an exception."""

    def __init__(self, *answers: Any) -> None:
        super().__init__("http://server/")
        self.answers = list(answers)
        self.requests: list[tuple[str, Any]] = []

    def _send(self, path: str, fields: dict[str, Any] | None) -> Any:
        self.requests.append((path, fields))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def error(code: int, retry_after: str | None = None, body: bytes = b'{"error": "why"}') -> HTTPError:
    headers = Message()
    if retry_after is not None:
        headers["Retry-After"] = retry_after
    return HTTPError("http://server/", code, "reason", headers, io.BytesIO(body))


class Clock:
    """Replaces the module `time`: sleeping advances the clock at once."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_requests_are_repeated_while_the_server_is_overloaded_or_loading(clock: Clock) -> None:
    client = ScriptedClient(error(503, "2"), error(429), error(503, "3600"), error(503, "soon"), LANGUAGES)
    assert client.choose_languages("zh", None) == ("zh", "en")
    assert clock.slept == [2, 1, 60, 1]
    assert client.requests == [("/languages", None)] * 5


def test_requests_are_not_repeated_for_longer_than_the_limit(clock: Clock) -> None:
    client = ScriptedClient(*(error(503, "60") for _ in range(99)))
    with pytest.raises(UserError, match=r"http://server/languages returned 503: why"):
        client.choose_languages(None, None)
    assert clock.slept == [60] * 11  # the last one begins at the limit of 600 seconds


@pytest.mark.parametrize(
    ("body", "message"), [(b'{"error": "why"}', "why"), (b"<html>", "reason"), (b"[]", "reason"), (b"{}", "reason")]
)
def test_other_errors_are_reported_at_once(body: bytes, message: str, clock: Clock) -> None:
    client = ScriptedClient(error(400, body=body))
    with pytest.raises(UserError, match=f"^http://server/languages returned 400: {message}$"):
        client.choose_languages(None, None)
    assert clock.slept == []


@pytest.mark.parametrize(
    ("source", "target", "pair"),
    [(None, "zh", ("en", "zh")), ("zh", None, ("zh", "en")), (None, "zh-Hans", ("en", "zh")), ("x", "y", ("x", "y"))],
)
def test_missing_language_follows_from_the_languages_of_the_server(
    source: str | None, target: str | None, pair: tuple[str, str]
) -> None:
    assert ScriptedClient(LANGUAGES).choose_languages(source, target) == pair


@pytest.mark.parametrize(
    ("source", "target", "offered"),
    [(None, None, "en to zh, en to de, zh to en"), ("en", None, "en to zh, en to de"), ("fr", None, "no such pair")],
)
def test_ambiguous_or_unknown_languages_are_rejected(source: str | None, target: str | None, offered: str) -> None:
    with pytest.raises(UserError, match=f"http://server offers {offered}; choose a pair"):
        ScriptedClient(LANGUAGES).choose_languages(source, target)


def translate(lines: list[str], limit: int) -> tuple[list[str], list[list[str]]]:
    """Translate into capital letters; return the translations, and the texts of each request."""

    class Capitals(ScriptedClient):
        def _send(self, path: str, fields: dict[str, Any] | None) -> Any:
            self.requests.append((path, fields))
            if path == "/frontend/settings":
                return {"charLimit": limit}
            assert path == "/translate" and fields is not None
            assert fields.items() >= {"source": "en", "target": "zh", "format": "text"}.items()
            return {"translatedText": [text.upper() for text in fields["q"]]}

    client = Capitals()
    translations = list(client.translate(lines, "en", "zh"))
    return translations, [fields["q"] for path, fields in client.requests if path == "/translate"]


def test_requests_stay_within_the_limits_of_lines_and_characters() -> None:
    lines = [f"line {number}" for number in range(2 * BATCH_LINES + 1)]
    translations, requests = translate(lines, limit=-1)
    assert translations == [line.upper() for line in lines]
    assert [len(texts) for texts in requests] == [BATCH_LINES, BATCH_LINES, 1]
    assert translate(["abc", "de", "f", "ghijkl", "m"], limit=6)[1] == [["abc", "de", "f"], ["ghijkl"], ["m"]]
    assert translate(["a", "b"], limit=0)[1] == [["a"], ["b"]]
    assert translate([], limit=6) == ([], [])


def test_blank_lines_are_kept_and_not_sent() -> None:
    assert translate(["a", " ", "", "b"], limit=-1) == (["A", " ", "", "B"], [["a", "b"]])
    assert translate(["", " "], limit=-1) == (["", " "], [])


def test_key_is_sent_with_texts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, dict[str, Any] | None, float]] = []

    def urlopen(request: Any, timeout: float) -> io.BytesIO:
        sent.append((request.full_url, request.data and json.loads(request.data), timeout))
        return io.BytesIO(b'{"translatedText": ["A"]}')

    monkeypatch.setattr(module, "urlopen", urlopen)
    fields = {"q": ["a"], "source": "en", "target": "zh", "format": "text"}
    assert list(Client("https://server", "secret").translate(["a"], "en", "zh")) == ["A"]
    assert list(Client("https://server").translate(["a"], "en", "zh")) == ["A"]
    settings = ("https://server/frontend/settings", None, module.TIMEOUT)
    url = "https://server/translate"
    assert sent == [
        settings,
        (url, fields | {"api_key": "secret"}, module.TIMEOUT),
        settings,
        (url, fields, module.TIMEOUT),
    ]
