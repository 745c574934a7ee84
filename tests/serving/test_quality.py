"""Confidences and flags in responses and on the page."""

import json
from typing import Any

import httpx
import pytest

from regard.data.text.sentences import split_sentences
from regard.serving.documents import TextDocument, TranslatedDocument
from regard.serving.messages import Quality, Translation
from tests.serving.page import Page
from tests.serving.server_process import ServerProcess

TEXT = "I love apples. They buy 42 books."


def post(server: ServerProcess, path: str, **body: object) -> Any:
    response = httpx.post(f"{server.url}{path}", json=body, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()


def test_own_api_returns_confidences_only_if_requested(server: ServerProcess) -> None:
    plain = post(server, "/api/translate", texts=TEXT, model="toy")["texts"][0]
    rated = post(server, "/api/translate", texts=TEXT, model="toy", confidence=True)["texts"][0]
    assert plain["text"] == rated["text"]
    for sentence, rated_sentence in zip(plain["sentences"], rated["sentences"], strict=True):
        [translation], [rated_translation] = sentence["translations"], rated_sentence["translations"]
        assert translation.keys() == {"text", "score"}
        assert 0 < rated_translation["confidence"] <= 1
        tokens = rated_translation["tokens"]
        assert "".join(rated_translation["text"][one["start"] : one["end"]] for one in tokens) == translation["text"]
        assert all(0 < one["confidence"] <= 1 for one in tokens)
    flags = [sentence["translations"][0]["flags"] for sentence in rated["sentences"]]
    assert flags == [{}, {"missing-number": "42"}]


def test_stream_returns_confidences(server: ServerProcess) -> None:
    body = {"texts": TEXT, "model": "toy", "confidence": True}
    events = httpx.post(f"{server.url}/api/translate/stream", json=body, timeout=300).text.split("\n\n")
    flags = [json.loads(event.removeprefix("data: "))["translations"][0]["flags"] for event in events[:2]]
    assert flags == [{}, {"missing-number": "42"}]


def test_translate_returns_the_lowest_confidence_and_all_flags(server: ServerProcess) -> None:
    query = {"source": "en", "target": "zh"}
    assert post(server, "/translate", q=TEXT, **query).keys() == {"translatedText"}
    one = post(server, "/translate", q=TEXT, confidence=True, **query)
    assert one["flags"] == {"missing-number": "42"}
    several = post(server, "/translate", q=["I love apples", TEXT, ""], confidence=True, **query)
    assert several["flags"] == [{}, {"missing-number": "42"}, {}]
    assert several["confidence"][1:] == [one["confidence"], 1.0]


def test_document_has_no_confidence_if_a_sentence_has_none() -> None:
    document = TextDocument(split_sentences("One. Two."))
    rated, unrated = (Translation("x", 0.0, quality=Quality(value, [], {})) for value in (0.5, None))
    assert TranslatedDocument(document, [[rated], [rated]], [None, None]).quality.confidence == 0.5
    assert TranslatedDocument(document, [[rated], [unrated]], [None, None]).quality.confidence is None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_page_shows_confidence_and_flags(page: Page, language: str) -> None:
    if language == "zh":
        page.click("中文")
    page.enter("I love apples\nThey buy 42 books", "translate")
    sentence, number = ("Confidence", "Number missing: 42") if language == "en" else ("置信度", "漏译数字：42")
    assert page.page.locator(".confidence").count() == 2  # of the text and of the chosen sentence
    assert sentence in page.text(".confidence")
    assert page.page.locator(".flag").all_text_contents() == [number]
    shaded = page.page.locator(".translation:not(.whole) .shaded")
    assert "".join(shaded.all_text_contents()) == "我喜欢苹果"
    assert shaded.first.get_attribute("title").endswith("%")
    page.click("2 They buy 42 books")
    page.wait_until(lambda: page.page.locator(".flag").count() == 2)
