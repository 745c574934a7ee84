"""Existing clients of LibreTranslate's API, unchanged, with a running server."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("deep_translator")
pytest.importorskip("libretranslatepy")

from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI

from regard import Translator, UserError
from regard.data.text.languages import script_converter
from regard.serving.client import Client
from tests.conftest import Command
from tests.serving.server_process import ServerProcess

LINES = ["I love apples", "We want tea and dogs", "They see cats", "Children buy books and apples"]


def test_libretranslatepy(server: ServerProcess, translator: Translator) -> None:
    client = LibreTranslateAPI(server.url)
    assert [client.translate(line, "en", "zh") for line in LINES] == translator(LINES)
    assert client.detect("I love apples")[0]["language"] == "en"
    assert [language["code"] for language in client.languages()] == ["en", "zh", "zt"]
    traditional = [script_converter("s2t")(line) for line in translator(LINES)]
    assert traditional != translator(LINES)
    for tag in ("zt", "zh-Hant"):
        assert [client.translate(line, "en", tag) for line in LINES] == traditional
    simplified, converted = "孩子们买书和苹果", "孩子們買書和蘋果"
    assert [client.detect(line)[0]["language"] for line in (simplified, converted)] == ["zh", "zt"]
    assert client.translate(converted, "zt", "en") == client.translate(simplified, "zh", "en")
    assert client.translate(converted, "auto", "en") == client.translate(simplified, "auto", "en")


def test_deep_translator(server: ServerProcess, translator: Translator) -> None:
    client = LibreTranslator(source="en", target="zh", api_key="x", custom_url=f"{server.url}/")
    assert [client.translate(line) for line in LINES] == translator(LINES)
    assert client.translate_batch(LINES) == translator(LINES)


def test_weblate_with_json_and_forms(server: ServerProcess, translator: Translator) -> None:
    codes = [language["code"] for language in httpx.get(f"{server.url}/languages").json()]
    assert {"en", "zh"} <= set(codes)
    texts = {"api_key": "", "q": LINES, "source": "en", "target": "zh"}
    response = httpx.post(f"{server.url}/translate", json=texts)
    assert response.json()["translatedText"] == translator(LINES)
    text = {"api_key": "", "q": LINES[0], "source": "en", "target": "zh"}  # older releases send a form
    assert httpx.post(f"{server.url}/translate", data=text).json()["translatedText"] == translator(LINES[0])


def test_mastodon_with_html_and_language_detection(server: ServerProcess, translator: Translator) -> None:
    posts = ['<p>We want tea <a href="https://a.example" rel="tag">and dogs</a></p>', "<p>They see cats</p>", ""]
    body = {"q": posts, "source": "auto", "target": "zh", "format": "html", "api_key": None}
    response = httpx.post(f"{server.url}/translate", json=body, headers={"content-type": "application/json"})
    assert response.status_code == 200
    data = response.json()
    with_link, plain, empty = data["translatedText"]
    assert (plain, empty) == (f"<p>{translator('They see cats')}</p>", "")
    assert '<a href="https://a.example" rel="tag">' in with_link
    assert re.sub(r"<[^>]*>", "", with_link) == translator("We want tea and dogs")
    assert data["detectedLanguage"][0]["language"] == "en"
    languages = httpx.get(f"{server.url}/languages").json()
    targets = {one["code"]: set(one["targets"]) - {one["code"]} for one in languages}
    assert targets == {"en": {"zh", "zt"}, "zh": {"en"}, "zt": {"en"}}


def test_command_line_client_translates_and_resumes(
    server: ServerProcess, translator: Translator, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REGARD_API_KEY", raising=False)
    words = ("translate", "--server", server.url, "--from", "en", "--to", "zh")
    printed = command(*words, *LINES)
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.splitlines() == translator(LINES)
    source, output = tmp_path / "in.en", tmp_path / "out.zh"
    source.write_text("".join(f"{line}\n" for line in (*LINES * 40, "", LINES[0])), encoding="utf-8")
    assert command(*words, "--input", source, "--output", output).code == 0
    complete = output.read_bytes()
    assert complete.decode().splitlines() == [*translator(LINES) * 40, "", translator(LINES[0])]
    output.write_bytes(complete[:1000])
    assert command(*words, "--input", source, "--output", output, "--resume").code == 0
    assert output.read_bytes() == complete


def test_command_line_client_reports_errors(server: ServerProcess, command: Command) -> None:
    words = ("translate", "--server", server.url)
    pairs = "en to zh, en to zt, zh to en, zt to en; choose a pair with --from and --to"
    assert pairs in command(*words, "I love apples").error
    pair = ("--from", "en", "--to", "de")
    assert "returned 400: de is not supported" in command(*words, *pair, "I love apples").error
    assert "--beam has no effect with --server" in command(*words, "--beam", 3, "I love apples").error
    assert "cannot be reached" in command("translate", "--server", "http://127.0.0.1:9", "x").error
    assert "expected a complete URL" in command("translate", "--server", "localhost:5000", "x").error
    assert "needs a model folder" in command("translate").error


def test_command_line_client_reads_the_key_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.cli.translate import Files, translate_on_server

    keys = []
    monkeypatch.setattr(Client, "_request", lambda self, path, fields=None: keys.append(self._key) or {})
    monkeypatch.setitem(os.environ, "REGARD_API_KEY", "secret")
    empty = tmp_path / "empty.txt"
    empty.touch()
    translate_on_server("http://x", Files([], empty, None, None, False), ("en", "zh"))
    assert keys == ["secret"]


def test_alternatives_are_the_next_hypotheses(server: ServerProcess, translator: Translator) -> None:
    body = {"q": "I love apples", "source": "en", "target": "zh", "alternatives": 2}
    response = httpx.post(f"{server.url}/translate", json=body).json()
    n_best = [hypothesis.text for hypothesis in translator("I love apples", n_best=3)]
    assert [response["translatedText"], *response["alternatives"]] == n_best


def test_n_best_lists_alignments_and_embeddings_equal_the_translators(
    server: ServerProcess, translator: Translator
) -> None:
    body = {"texts": LINES, "model": "toy", "n_best": 3, "alignments": True, "split": False}
    response = httpx.post(f"{server.url}/api/translate", json=body).json()
    for line, text in zip(LINES, response["texts"], strict=True):
        hypotheses = translator(line, n_best=3)
        (sentence,) = text["sentences"]
        assert [one["text"] for one in sentence["translations"]] == [one.text for one in hypotheses]
        for translation, expected in zip(sentence["translations"], hypotheses, strict=True):
            alignment = translation["alignment"]
            assert translation["score"] == pytest.approx(expected.score, abs=1e-4)
            assert alignment["weights"] == [pytest.approx(row, abs=1e-3) for row in expected.alignment]
            assert covered_characters(alignment["target_spans"]) == set(range(len(translation["text"])))
            assert covered_characters(alignment["source_spans"]) == set(range(len(line)))
    vectors = httpx.post(f"{server.url}/api/embed", json={"texts": LINES, "model": "toy"}).json()["vectors"]
    for vector, expected in zip(vectors, translator.embed(LINES), strict=True):
        assert vector == pytest.approx(expected.tolist(), abs=1e-4)


def covered_characters(spans: list[list[int]]) -> set[int]:
    return {position for start, end in spans for position in range(start, end)}


def test_texts_are_split_into_sentences_and_keep_their_spacing(server: ServerProcess, translator: Translator) -> None:
    text = "  I love apples.\n\n\tThey see cats.  We want tea and dogs\n"
    sentences = ("I love apples.", "They see cats.", "We want tea and dogs")
    expected = "  {}\n\n\t{}  {}\n".format(*(translator(sentence) for sentence in sentences))
    assert server.translate(text) == expected


def test_stream_sends_sentences_separately(server: ServerProcess) -> None:
    body: dict[str, Any] = {"texts": [". ".join(LINES)], "source": "en", "target": "zh"}
    with httpx.stream("POST", f"{server.url}/api/translate/stream", json=body, timeout=300) as response:
        events = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert len(events) == len(LINES) + 1


def test_a_continued_output_must_not_be_longer_than_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.cli.translate import Files, translate_on_server

    requested: list[list[str]] = []

    class Uppercase:
        def __init__(self, url: str, key: str | None) -> None:
            pass

        def choose_languages(self, source: str | None, target: str | None) -> tuple[str | None, str | None]:
            return source, target

        def translate(self, lines: Iterable[str], source: str, target: str) -> Iterator[str]:
            requested.append(list(lines))
            return (f"{source}-{target} {line.upper()}" for line in requested[-1])

    monkeypatch.setattr("regard.serving.client.Client", Uppercase)
    out = tmp_path / "out.txt"
    out.write_text("A\nB\n")
    with pytest.raises(UserError, match=f"{out} has more lines than the input, so it belongs to another input"):
        translate_on_server("http://x", Files(["a"], None, None, out, True), ("en", "zh"))
    assert out.read_text() == "A\nB\n"
    translate_on_server("http://x", Files(["a", "b", "c", "d"], None, None, out, True), ("en", "zh"))
    assert out.read_text() == "A\nB\nen-zh C\nen-zh D\n"
    assert requested == [["c", "d"]]


def test_files_as_clients_of_libretranslate_send_them(server: ServerProcess, translator: Translator) -> None:
    """libretranslatepy has no function for files; other clients post a form with requests and fetch the URL."""
    requests = pytest.importorskip("requests")
    text = "".join(f"{i}\n00:00:0{i},000 --> 00:00:0{i},900\n{line}\n\n" for i, line in enumerate(LINES, 1))
    form = {"source": "en", "target": "zh", "api_key": "", "format": "text"}
    response = requests.post(f"{server.url}/translate_file", files={"file": ("talk.srt", text)}, data=form, timeout=300)
    assert response.status_code == 200, response.text
    file = requests.get(response.json()["translatedFileUrl"], timeout=300)
    expected = text
    for line in LINES:
        expected = expected.replace(line, translator(line))
    assert file.content.decode("utf-8") == expected
    settings = requests.get(f"{server.url}/frontend/settings", timeout=300).json()
    assert (settings["filesTranslation"], ".srt" in settings["supportedFilesFormat"]) == (True, True)
