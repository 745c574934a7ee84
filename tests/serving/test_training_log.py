"""Training runs on the page: the log, the attention at checkpoints, and runs without a model."""

import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

import numpy as np

from regard.errors import UserError
from regard.serving import training_log
from regard.serving.messages import UNFINISHED, LoadRequest
from regard.serving.model_runner import load_runner
from regard.serving.training_log import checkpoint_steps, read_log
from tests.serving.page import Page
from tests.serving.test_page_data import unpack


def write_lines(run: Path, *lines: str) -> None:
    (run / "log.jsonl").write_text("".join(lines), encoding="utf-8")


def test_log_is_read_in_parts_of_complete_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_log(tmp_path, 0).entries == []
    assert checkpoint_steps(tmp_path) == []
    entries = [json.dumps({"step": step, "loss": 1 / step}) + "\n" for step in range(1, 6)]
    write_lines(tmp_path, *entries[:2], "no JSON\n", '["no entry"]\n', entries[2][:7])
    part = read_log(tmp_path, 0)
    assert [entry["step"] for entry in part.entries] == [1, 2]
    unusable = [
        '["no entry"]\n',
        '{"step": 3, "loss": "\\ud800"}\n',
        f'{{"step": 3, "loss": {"[" * 500}{"]" * 500}}}\n',
    ]
    write_lines(tmp_path, *entries[:2], "no JSON\n", *unusable, "[" * 100_000 + "\n", *entries[2:])
    assert [entry["step"] for entry in read_log(tmp_path, part.next).entries] == [3, 4, 5]
    assert read_log(tmp_path, read_log(tmp_path, 0).next).entries == []
    write_lines(tmp_path, entries[0])  # the run was started again
    assert [entry["step"] for entry in read_log(tmp_path, part.next).entries] == [1]
    monkeypatch.setattr(training_log, "MAX_BYTES", 40)
    write_lines(tmp_path, *entries)
    assert [entry["step"] for entry in read_log(tmp_path, 0).entries] == [1]


def test_map_of_a_checkpoint_is_that_of_its_weights(trained_run: Path, tmp_path: Path) -> None:
    runner = load_runner(LoadRequest("toy", trained_run, "cpu"))
    assert "training" in runner.info.sections
    steps = checkpoint_steps(trained_run)
    assert steps
    fields = {"text": "I love apples", "target": [8, 9], "name": "decoder.1.cross", "head": 1, "quantity": "weights"}
    last = load_runner(LoadRequest("last", trained_run / "last", "cpu"))
    expected = unpack(last.run("map", [fields], {})[0])[1]["map"]
    seen = unpack(runner.run("training_map", [fields | {"step": steps[-1]}], {})[0])[1]["map"]
    assert np.allclose(seen, expected, atol=1e-3)
    with pytest.raises(UserError, match="has been deleted"):
        runner.run("training_map", [fields | {"step": 7}], {})
    assert "training" not in last.info.sections


def test_run_without_a_model_shows_only_its_training(tmp_path: Path) -> None:
    write_lines(tmp_path, '{"step": 1, "loss": 2.0}\n')
    runner = load_runner(LoadRequest("new", tmp_path, "cpu"))
    assert (runner.info.kind, runner.info.sections) == (UNFINISHED, ("training",))


def test_training_is_shown_with_charts_samples_and_attention(page: Page) -> None:
    page.open("training")
    assert page.page.locator(".line-chart").count() == 2
    label = page.page.locator(".line-chart").first.get_attribute("aria-label")
    assert label.startswith("Loss: training ")
    assert page.page.locator(".sample").count() == 3
    assert "Step 450" in page.text(".section .readout")
    page.page.wait_for_selector(".head-title:not(:empty)")
    assert page.text(".head-title").startswith("step 450 · decoder.1.cross")
    page.page.route("**/api/inspect/training?*", lambda route: route.fulfill(json=NEWS))
    page.wait_until(lambda: "Step 9000" in page.text(".section .readout"))
    page.select_model("narrow", "translate")
    page.open("training")
    assert "without the log" in page.text(".unavailable")


NEWS = {"entries": [{"step": 9000, "seconds": 5, "loss": 0.5}], "next": 10**9, "steps": [450], "has_model": True}


def test_two_models_are_shown_side_by_side_in_every_section(page: Page) -> None:
    page.page.locator("#second").select_option("narrow")
    page.page.wait_for_selector(".column:nth-child(2) .translation:not(:empty)")
    for section in ("translate", "attention", "arithmetic", "beam", "change", "positions"):
        page.open(section)
        titles = page.page.locator(".column-title").all_text_contents()
        assert titles == ["toy", "narrow"], section
        first, second = (page.page.locator(".column").nth(number).bounding_box() for number in (0, 1))
        assert second["x"] >= first["x"] + first["width"]
        assert page.page.locator(".column .error").count() == 0
    page.open("arithmetic")
    page.page.locator(".column").first.get_by_role("button", name="softmax").click()
    pressed = page.page.locator(".column").nth(1).locator(".steps [aria-pressed=true]")
    page.wait_until(lambda: "softmax" in " ".join(pressed.all_text_contents()))
    page.open("training")
    assert page.page.locator(".column").nth(1).locator(".unavailable").count() == 1
    assert "second=narrow" in page.page.url
    page.page.locator("#second").select_option("")
    page.wait_until(lambda: page.page.locator(".column").count() == 0)
