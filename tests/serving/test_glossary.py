"""Glossaries in requests and on the page."""

import json
from typing import Any

import pytest

pytest.importorskip("fastapi")

import httpx
from pydantic import ValidationError

from regard.serving import schemas
from tests.serving.page import Page
from tests.serving.server_process import ServerProcess
from tests.serving.test_page_documents import SUBTITLES, choose, download

TERM = {"source": "apples", "start": 7, "target": "书", "kept": True}


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> Any:
    response = httpx.post(f"{server.url}{path}", json=body, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()


def test_terms_are_translated_and_reported(server: ServerProcess) -> None:
    fields = {"source": "en", "target": "zh", "glossary": {"apple": "书"}}
    one = post(server, "/translate", {"q": "I love apples"} | fields)
    assert one == {"translatedText": "我喜欢书", "terms": [TERM]}
    several = post(server, "/translate", {"q": ["I love apples", "You buy tea"]} | fields)
    assert several == {"translatedText": ["我喜欢书", "你买茶"], "terms": [[TERM], []]}
    plain = post(server, "/translate", {"q": "I love apples", "source": "en", "target": "zh"})
    assert plain == {"translatedText": "我喜欢苹果"}
    body = {"texts": "I love apples\nYou buy tea", "model": "toy", "glossary": [["apples", "书"]]}
    sentences = post(server, "/api/translate", body)["texts"][0]["sentences"]
    assert [sentence["translations"][0]["terms"] for sentence in sentences] == [[TERM], []]


@pytest.mark.parametrize("value", [{"apples": "书"}, [["apples", "书"]], '{"apples": "书"}', '[["apples", "书"]]'])
def test_glossary_is_an_object_or_pairs_or_json_of_a_form(value: Any) -> None:
    fields = {"q": "a", "source": "en", "target": "zh", "glossary": value}
    assert schemas.TranslateRequest.model_validate(fields).glossary == (("apples", "书"),)


@pytest.mark.parametrize(
    "value", ["apples", "{", 1, {"": "a"}, {"a": ""}, [["a"]], [["a", "b"], ["a", "c"]], {"a": "x" * 201}]
)
def test_invalid_glossaries_are_rejected(value: Any) -> None:
    with pytest.raises(ValidationError, match="glossary"):
        schemas.ApiTranslateRequest.model_validate({"texts": "a", "glossary": value})


def test_number_of_terms_is_limited() -> None:
    terms = {f"term{i}": "a" for i in range(schemas.MAX_TERMS + 1)}
    with pytest.raises(ValidationError, match="has 1,001 terms, but a request may have 1,000"):
        schemas.ApiTranslateRequest.model_validate({"texts": "a", "glossary": json.dumps(terms)})


def test_terms_of_a_document_are_translated(server: ServerProcess) -> None:
    form = {"source": "en", "target": "zt", "glossary": '{"apple": "書"}'}
    response = httpx.post(f"{server.url}/translate_file", data=form, files={"file": ("a.txt", b"I love apples")})
    assert httpx.get(response.json()["translatedFileUrl"]).text == "我喜歡書"
    form["glossary"] = "apple"
    response = httpx.post(f"{server.url}/translate_file", data=form, files={"file": ("a.txt", b"I love apples")})
    assert (response.status_code, "Invalid request: glossary: expected JSON such as" in response.json()["error"]) == (
        400,
        True,
    )


def test_page_applies_a_glossary_and_keeps_it_in_the_link(page: Page) -> None:
    page.page.locator(".glossary summary").click()
    field = page.page.get_by_label("Prescribe the translation of terms")
    field.fill("apple = 书\ntea")
    field.blur()
    page.wait_until(lambda: page.text(".translation:not(.whole)") == "我喜欢书")
    assert page.text(".terms") == "apples → 书 kept"
    assert "Line 2 has no translation" in page.text(".glossary .hint")
    choose(page, "talk.srt", SUBTITLES.encode())
    assert download(page) == SUBTITLES.replace("I love apples", "我喜欢书")
    page.page.reload()
    page.wait_until_ready("translate")
    page.wait_until(lambda: page.text(".translation:not(.whole)") == "我喜欢书")
