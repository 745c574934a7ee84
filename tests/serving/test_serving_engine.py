"""`regard serve --engine ctranslate2`: the same translations, and what the engine lacks refused by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("ctranslate2")

from regard import Translator
from regard.errors import UserError
from regard.serving.messages import LoadRequest
from regard.serving.model_runner import open_engine
from tests.conftest import Command
from tests.serving.running import SECONDS, Running


@pytest.fixture(scope="module")
def served(trained_run: Path) -> Iterator[Running]:
    words = ("--engine", "ctranslate2", "--precision", "int8", "--limit", "drain=0")
    running = Running(f"toy={trained_run}", *words).until_ready()
    yield running
    assert running.end() == 0


def ask(served: Running, path: str, **fields: object) -> tuple[int, Any]:
    answer = httpx.post(f"{served.url}{path}", json=fields, timeout=SECONDS)
    binary = answer.headers["content-type"].startswith("application/octet-stream")
    return answer.status_code, answer.content if binary else answer.json()


def test_it_translates(served: Running) -> None:
    assert served.translate(["I love apples", "You buy tea"]) == ["我喜欢苹果", "你买茶"]
    assert served.translate("<p>I love apples</p>", format="html") == "<p>我喜欢苹果</p>"
    status, answer = ask(served, "/api/translate", texts="I love apples", n_best=3)
    assert status == 200 and len(answer["texts"][0]["sentences"][0]["translations"]) == 3


def test_what_the_engine_lacks_is_refused_by_name(served: Running) -> None:
    sentence = "I love apples"
    refusals = {
        "no embed": ask(served, "/api/embed", texts=sentence, model="toy"),
        "no alignments": ask(served, "/api/translate", texts=sentence, alignments=True),
        "no alignments, by which markup": ask(
            served, "/translate", q="<p>I <b>love</b> apples</p>", source="en", target="zh", format="html"
        ),
        "no attention": ask(served, "/api/inspect/attention", text=sentence, target=[5], model="toy"),
        "no beam": ask(served, "/api/inspect/beam", text=sentence, search={}, model="toy"),
        "no positions": ask(served, "/api/inspect/positions", length=8, model="toy"),
    }
    for wanted, (status, answer) in refusals.items():
        assert status == 400, (wanted, answer)
        assert f"toy runs in the engine ctranslate2, which has {wanted}" in answer["error"]


def test_the_page_is_told(served: Running) -> None:
    (model,) = httpx.get(f"{served.url}/api/models", timeout=SECONDS).json()["models"]
    assert (model["engine"], model["operations"], model["sections"]) == ("ctranslate2", ["translate"], ["translate"])
    status, packet = ask(served, "/api/inspect/translation", text="I love apples", n_best=2, model="toy")
    assert status == 200 and "我喜欢苹果" in packet.decode("utf-8", errors="ignore")


def test_the_page_says_in_a_sentence_what_the_engine_hides(browser: Any, served: Running) -> None:
    tab = browser.new_page()
    try:
        tab.goto(f"{served.url}/#attention")
        tab.wait_for_selector("html[data-ready=attention]")
        assert "toy runs in the engine ctranslate2" in tab.locator(".missing").text_content()
        tab.goto(f"{served.url}/#translate")
        tab.reload()
        tab.wait_for_selector("html[data-ready=translate]")
        tab.locator("#text").fill("I love apples")
        tab.locator("#text").press("Enter")
        tab.wait_for_function("document.querySelector('.answer')?.textContent === '我喜欢苹果'")
        assert "serve it with --engine regard" in tab.locator(".told").text_content()
    finally:
        tab.close()


def test_an_exported_folder_is_served_as_it_is(trained_run: Path, tmp_path: Path) -> None:
    Translator.load(trained_run).save_engine(tmp_path)
    engine = open_engine(LoadRequest("exported", tmp_path, "cpu"))
    engine.warm_up()
    assert (engine.about.engine, engine.about.languages) == ("ctranslate2", ("en", "zh"))
    (best,) = engine.run("translate", ["I love apples"], {"n_best": 1, "alignments": False})
    assert best[0].text == "我喜欢苹果"
    for operation in ("embed", "attention", "change"):
        with pytest.raises(UserError, match="it can translate, but not"):
            engine.run(operation, ["I love apples"], {})


def test_images_have_no_such_engine(image_run: Path, trained_run: Path, command: Command) -> None:
    with pytest.raises(UserError, match="does not translate"):
        open_engine(LoadRequest("images", image_run, "cpu", engine="ctranslate2"))
    with pytest.raises(UserError, match="none of regard, ctranslate2"):
        open_engine(LoadRequest("toy", trained_run, "cpu", engine="onnx"))
