"""`regard serve --engine ctranslate2`: translations, and messages about unsupported features."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("ctranslate2")

from regard import Translator
from regard.errors import UserError
from regard.interop.ctranslate2 import save_ctranslate2
from regard.serving.messages import LoadRequest
from regard.serving.model_runner import load_runner
from tests.serving.server_process import TIMEOUT, ServerProcess


@pytest.fixture(scope="module")
def ct2_server(trained_run: Path) -> Iterator[ServerProcess]:
    options = ("--engine", "ctranslate2", "--precision", "int8", "--limit", "drain=0")
    process = ServerProcess(f"toy={trained_run}", *options).wait_until_ready()
    yield process
    assert process.stop() == 0


def post(server: ServerProcess, path: str, **fields: object) -> tuple[int, Any]:
    response = httpx.post(f"{server.url}{path}", json=fields, timeout=TIMEOUT)
    is_binary = response.headers["content-type"].startswith("application/octet-stream")
    return response.status_code, response.content if is_binary else response.json()


def test_texts_and_html_are_translated(ct2_server: ServerProcess) -> None:
    assert ct2_server.translate(["I love apples", "You buy tea"]) == ["我喜欢苹果", "你买茶"]
    assert ct2_server.translate("<p>I love apples</p>", format="html") == "<p>我喜欢苹果</p>"
    status, body = post(ct2_server, "/api/translate", texts="I love apples", n_best=3)
    assert status == 200
    assert len(body["texts"][0]["sentences"][0]["translations"]) == 3


def test_unsupported_features_are_named(ct2_server: ServerProcess) -> None:
    text = "I love apples"
    html = {"q": "<p>I <b>love</b> apples</p>", "source": "en", "target": "zh", "format": "html"}
    responses = {
        "embed": post(ct2_server, "/api/embed", texts=text, model="toy"),
        "alignments": post(ct2_server, "/api/translate", texts=text, alignments=True),
        "markup within sentences": post(ct2_server, "/translate", **html),
        "attention": post(ct2_server, "/api/inspect/attention", text=text, target=[5], model="toy"),
        "beam": post(ct2_server, "/api/inspect/beam", text=text, search={}, model="toy"),
        "positions": post(ct2_server, "/api/inspect/positions", length=8, model="toy"),
    }
    for feature, (status, body) in responses.items():
        assert status == 400, (feature, body)
        assert body["error"] == f"toy runs on ctranslate2, which does not support {feature}"


def test_model_list_names_the_engine(ct2_server: ServerProcess) -> None:
    (model,) = httpx.get(f"{ct2_server.url}/api/models", timeout=TIMEOUT).json()["models"]
    assert (model["engine"], model["operations"]) == ("ctranslate2", ["translate"])
    assert model["sections"] == ["translate", "training"]
    status, packet = post(ct2_server, "/api/inspect/translation", text="I love apples", n_best=2, model="toy")
    assert status == 200
    assert "我喜欢苹果" in packet.decode("utf-8", errors="ignore")


def test_page_explains_what_the_engine_does_not_support(browser: Any, ct2_server: ServerProcess) -> None:
    tab = browser.new_page()
    try:
        tab.goto(f"{ct2_server.url}/#attention")
        tab.wait_for_selector("html[data-ready=attention]")
        assert "toy runs on ctranslate2" in tab.locator(".unavailable").text_content()
        tab.goto(f"{ct2_server.url}/#translate")
        tab.reload()
        tab.wait_for_selector("html[data-ready=translate]")
        tab.locator("#text").fill("I love apples")
        tab.locator("#text").press("Enter")
        tab.wait_for_function("document.querySelector('.translation')?.textContent === '我喜欢苹果'")
        assert "--engine regard" in tab.locator(".readout").text_content()
    finally:
        tab.close()


def test_exported_folder_is_served(trained_run: Path, tmp_path: Path) -> None:
    save_ctranslate2(Translator.load(trained_run), tmp_path)
    runner = load_runner(LoadRequest("exported", tmp_path, "cpu"))
    runner.warm_up()
    assert (runner.info.engine, runner.info.languages) == ("ctranslate2", ("en", "zh"))
    (n_best,) = runner.run("translate", ["I love apples"], {"n_best": 1, "alignments": False})
    assert n_best[0].text == "我喜欢苹果"
    for operation in ("embed", "attention", "change"):
        with pytest.raises(UserError, match=f"exported does not support {operation}; it supports translate"):
            runner.run(operation, ["I love apples"], {})


def test_unsupported_engines_are_rejected(image_run: Path, trained_run: Path) -> None:
    with pytest.raises(UserError, match="is not a translation model"):
        load_runner(LoadRequest("images", image_run, "cpu", engine="ctranslate2"))
    with pytest.raises(UserError, match="regard, ctranslate2"):
        load_runner(LoadRequest("toy", trained_run, "cpu", engine="onnx"))
