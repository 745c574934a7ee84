"""Clients that people already use, unchanged, against a running server; every answer is the offline translation."""

import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI

from regard import Translator
from tests.conftest import Command
from tests.serving.running import Running

LINES = ["I love apples", "We want tea and dogs", "They see cats", "Children buy books and apples"]


def test_libretranslatepy(server: Running, offline: Translator) -> None:
    client = LibreTranslateAPI(server.url)
    assert [client.translate(line, "en", "zh") for line in LINES] == offline(LINES)
    assert client.detect("I love apples")[0]["language"] == "en"
    assert [one["code"] for one in client.languages()] == ["en", "zh"]


def test_deep_translator(server: Running, offline: Translator) -> None:
    client = LibreTranslator(source="en", target="zh", api_key="x", custom_url=f"{server.url}/")
    assert [client.translate(line) for line in LINES] == offline(LINES)
    assert client.translate_batch(LINES) == offline(LINES)


def test_weblate_in_both_its_forms(server: Running, offline: Translator) -> None:
    codes = [one["code"] for one in httpx.get(f"{server.url}/languages").json()]
    assert {"en", "zh"} <= set(codes)
    many = {"api_key": "", "q": LINES, "source": "en", "target": "zh"}
    answer = httpx.post(f"{server.url}/translate", json=many)
    assert answer.json()["translatedText"] == offline(LINES)
    one = {"api_key": "", "q": LINES[0], "source": "en", "target": "zh"}  # older releases, a form
    assert httpx.post(f"{server.url}/translate", data=one).json()["translatedText"] == offline(LINES[0])


def test_mastodon_a_list_of_html_with_the_language_unknown(server: Running, offline: Translator) -> None:
    posts = ['<p>We want tea <a href="https://a.example" rel="tag">and dogs</a></p>', "<p>They see cats</p>", ""]
    asked = {"q": posts, "source": "auto", "target": "zh", "format": "html", "api_key": None}
    answer = httpx.post(f"{server.url}/translate", json=asked, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    data = answer.json()
    assert data["translatedText"][1] == f"<p>{offline('They see cats')}</p>"
    assert data["translatedText"][2] == ""
    linked = data["translatedText"][0]
    assert '<a href="https://a.example" rel="tag">' in linked
    assert without_tags(linked) == offline("We want tea and dogs")
    assert data["detectedLanguage"][0]["language"] == "en"
    languages = httpx.get(f"{server.url}/languages").json()
    assert {one["code"]: set(one["targets"]) - {one["code"]} for one in languages} == {"en": {"zh"}, "zh": {"en"}}


def without_tags(text: str) -> str:
    return re.sub(r"<[^>]*>", "", text)


def test_the_command_line_as_a_client(
    server: Running, offline: Translator, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REGARD_API_KEY", raising=False)
    words = ("translate", "--server", server.url, "--from", "en", "--to", "zh")
    told = command(*words, *LINES)
    assert (told.code, told.err) == (0, "")
    assert told.out.splitlines() == offline(LINES)
    source, output = tmp_path / "in.en", tmp_path / "out.zh"
    source.write_text("".join(f"{line}\n" for line in (*LINES * 40, "", LINES[0])), encoding="utf-8")
    assert command(*words, "--input", source, "--output", output).code == 0
    whole = output.read_bytes()
    assert whole.decode().splitlines() == [*offline(LINES) * 40, "", offline(LINES[0])]
    output.write_bytes(whole[:1000])
    assert command(*words, "--input", source, "--output", output, "--resume").code == 0
    assert output.read_bytes() == whole


def test_what_the_command_line_cannot_ask_a_server_is_said(server: Running, command: Command) -> None:
    words = ("translate", "--server", server.url)
    assert "en to zh, zh to en; choose with --from and --to" in command(*words, "I love apples").refusal
    pair = ("--from", "en", "--to", "de")
    assert "answers 400: de is not supported" in command(*words, *pair, "I love apples").refusal
    assert "--beam is nothing that --server" in command(*words, "--beam", 3, "I love apples").refusal
    assert "cannot be asked" in command("translate", "--server", "http://127.0.0.1:9", "x").refusal
    assert "write a whole address" in command("translate", "--server", "localhost:5000", "x").refusal
    assert "--from and --to go with --server" in command("translate", "run", "--from", "en", "x").refusal
    assert "needs a model folder" in command("translate").refusal


def test_alternatives_are_the_other_hypotheses(server: Running, offline: Translator) -> None:
    asked = {"q": "I love apples", "source": "en", "target": "zh", "alternatives": 2}
    answer = httpx.post(f"{server.url}/translate", json=asked).json()
    best = [one.text for one in offline("I love apples", n_best=3)]
    assert [answer["translatedText"], *answer["alternatives"]] == best


def test_n_best_alignments_and_vectors_are_the_translators(server: Running, offline: Translator) -> None:
    asked = {"texts": LINES, "model": "toy", "n_best": 3, "alignments": True, "split": False}
    answer = httpx.post(f"{server.url}/api/translate", json=asked).json()
    for line, text in zip(LINES, answer["texts"], strict=True):
        found = offline(line, n_best=3)
        (sentence,) = text["sentences"]
        assert [one["text"] for one in sentence["translations"]] == [one.text for one in found]
        for sent, known in zip(sentence["translations"], found, strict=True):
            assert sent["score"] == pytest.approx(known.score, abs=1e-4)
            assert sent["alignment"]["weights"] == [pytest.approx(row, abs=1e-3) for row in known.alignment]
            assert covered(sent["alignment"]["target_spans"]) == set(range(len(sent["text"])))
            assert covered(sent["alignment"]["source_spans"]) == set(range(len(line)))
    vectors = httpx.post(f"{server.url}/api/embed", json={"texts": LINES, "model": "toy"}).json()["vectors"]
    for vector, known in zip(vectors, offline.embed(LINES), strict=True):
        assert vector == pytest.approx(known.tolist(), abs=1e-4)


def covered(spans: list[list[int]]) -> set[int]:
    return {place for a, b in spans for place in range(a, b)}


def test_a_long_text_is_split_and_keeps_its_spacing(server: Running, offline: Translator) -> None:
    text = "  I love apples.\n\n\tThey see cats.  We want tea and dogs\n"
    found = {line: offline(line) for line in ("I love apples.", "They see cats.", "We want tea and dogs")}
    assert server.translate(text) == "  {}\n\n\t{}  {}\n".format(*found.values())


def test_a_stream_sends_sentences_one_by_one(server: Running, offline: Translator) -> None:
    asked: dict[str, Any] = {"texts": [". ".join(LINES)], "source": "en", "target": "zh"}
    with httpx.stream("POST", f"{server.url}/api/translate/stream", json=asked, timeout=60) as answer:
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert len(events) == len(LINES) + 1


def test_the_key_of_the_command_line_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.serving.client import Client

    sent = []
    monkeypatch.setattr(Client, "_ask", lambda self, path, fields=None: sent.append(self._key) or {})
    monkeypatch.setitem(os.environ, "REGARD_API_KEY", "secret")
    from regard.cli.translate_remote import translate_at

    translate_at("http://x", [], 0, None, False, ("en", "zh"), False)
    assert sent == ["secret"]
