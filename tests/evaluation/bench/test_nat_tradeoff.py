"""benchmarks/nat.py and what is written about it: settings to train by, and figures that are the results' own."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import parallel as script
from benchmarks.reports import parallel as report
from regard import Translator
from regard.decoding.cuda_graph.nat import CapturedNAT
from regard.models.nat import NATransformer, NATransformerConfig
from regard.training.recipe import Recipe
from tests.interop.random_models import random_translator


def test_every_student_can_be_taught_by_its_settings() -> None:
    for student in script.STUDENTS.values():
        recipe = Recipe.load(Path("multi30k-en-de"), student.changes)
        assert recipe.training.validate_every <= recipe.training.steps
        assert recipe.training.steps % recipe.training.validate_every == 0


def pack(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()))


def test_turns_are_told_apart_by_who_had_one_before() -> None:
    watch = script.Watch([])
    for who, seconds in [(0, 9), (0, 9), (1, 9), (0, 0.001), (0, 0.003), (1, 0.005), (0, 0.004), (1, 0.007)]:
        watch.calls.append((who, seconds))
    assert watch.turns(0) == [2.0, 4.0]
    assert watch.turns(1) == [5.0, 7.0]


def test_results_and_their_command_name_no_place_of_this_machine(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(tmp_path / "test_2016_flickr.en.gz", "I love apples\nWe see cats\n")
    pack(tmp_path / "test_2016_flickr.de.gz", "我喜欢苹果\n我们看见猫\n")
    words = [
        "timing",
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path),
        "--teacher",
        str(trained_run),
        "--device",
        "cpu",
    ]
    monkeypatch.setattr(sys, "argv", ["parallel.py", *words, "--seconds", "0", "--batch", "1", "--batch", "2"])
    seen: list[list[int]] = []
    write_down = script.write_down

    def watch(path: Path, *others: Any) -> None:
        write_down(path, *others)
        rows = json.loads(path.read_text())["results"]
        seen.append([len(rows[0]["timings"]), sum(row["score"] is not None for row in rows)])

    monkeypatch.setattr(script, "write_down", watch)
    script.main()
    assert seen == [[1, 0], [2, 0], [2, 1], [2, 2], [2, 2]]  # timings and scores, as far as there are any
    text = (tmp_path / "nat-cpu.json").read_text()
    assert not [place for place in (tmp_path, trained_run) if str(place) in text]
    result = json.loads(text)
    assert "--data DATA --out OUT --teacher TEACHER --device cpu" in result["command"]
    assert [len(timing["turns"]) for timing in result["results"][0]["timings"]] == [5, 5]
    assert result["rounded_to_bfloat16"] == []


def test_rounded_weights_are_known_as_such(trained_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained_run / "best", tmp_path / "model"))
    assert not script.are_rounded(folder)
    script.round_weights(folder)
    assert script.are_rounded(folder)
    assert torch.isfinite(script.Translator.load(folder).embed(["I"])[0]).all()


def row(name: str, score: float, *milliseconds: float) -> dict[str, Any]:
    timings = [
        {"batch": b, "milliseconds": ms, "turns": [ms - 1, ms + 2]} for b, ms in zip((1, 8), milliseconds, strict=True)
    ]
    return {"name": name, "parameters": 2_600_000, "score": {"value": score}, "timings": timings}


def test_what_is_written_follows_from_the_results() -> None:
    rows = [row(report.GREEDY, 38, 60, 90), row("teacher, beam 5", 40, 90, 200), row(report.DEEP, 39, 24, 18)]
    rows += [row(name, 36 - n, 12 + 3 * n, 18 * (n + 1)) for n, name in enumerate(report.ONE_PASS)]
    rows += [row(report.TEN, 37, 40, 180), row(f"{report.TEN}, 3 lengths", 38, 80, 300)]
    rows += [row(f"mask-predict, {n} rounds, 5 lengths, reranked", 39.2, 90, 400) for n in (4, 10)]
    students = {name: {"warm": name == "ctc"} for name in ("deep", "end", "ctc")}
    result = {"machine": "M", "results": rows, "rounded_to_bfloat16": ["end", "ctc"], "students": students}
    said = report.write_verdict({"nat-cpu": result})
    assert "one pass is 2.9 to 5.0 times as fast in batches of 1 and 1.2 to 5.0 times as fast in batches of 8" in said
    assert "ten rounds 1.5 and 0.5 times as fast" in said
    assert "launched" not in said
    assert "has 39.0 BLEU greedily, one pass 36.0 at best" in said
    assert "one pass is 1.1 to 2.0 times as fast in batches of 1 and 0.2 to 1.0 times as fast in batches of 8" in said
    assert "Ours reach 85 % (does not hold), 82 % (does not hold) and 92 % (does not hold)" in said
    assert "but at 0.7 and 0.7 times the speed of its own greedy search" in said
    assert "15 times for one pass does not hold and 2 times for ten rounds does not hold" in said
    launched = [row(name + report.LAUNCHED, 38, 1200, 600) for name in (report.GREEDY, *report.ONE_PASS)]
    launched[1:] = [row(one["name"], 36, 60, 100) for one in launched[1:]]
    said = report.write_verdict({"nat-gpu": result | {"results": rows + launched}})
    assert "one pass is 20.0 to 20.0 times as fast in batches of 1 and 6.0 to 6.0 times as fast in batches of 8" in said
    assert "60.0 in place of 1200.0 ms, and mask-predict, 1 iteration 12.0 in place of 60.0" in said
    assert "15 times for one pass holds and 2 times for ten rounds does not hold" in said
    table = report.write_trade({"nat-cpu": result | {"what": "W", "versions": {"torch": "1"}, "date": "D"}})
    assert "| 12+1 layers, greedy | 39.00 | 2.6 M | 24.0 ± 1.5 (2.50×) | 18.0 ± 1.5 (5.00×) |" in table
    assert "The weights of end and ctc were rounded" in table
    assert "took turns" in table
    assert "and of further captions; ctc began with the teacher's encoder" in table
    assert "launched" not in table


def test_what_is_to_be_launched_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def replay(self: object, *given: object) -> None:
        raise AssertionError("it was replayed")

    monkeypatch.setattr(script.NATGenerator, "capture_devices", ("cpu", "cuda"))
    monkeypatch.setattr(CapturedNAT, "decode", replay)
    vocabularies = random_translator("post").vocabularies
    sizes = {"width": 32, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "hidden": 64}
    config = NATransformerConfig.base(len(vocabularies.target), length="ctc", **sizes)
    translator = Translator(NATransformer(config), vocabularies)
    settings = translator.resolve_settings()
    with pytest.raises(AssertionError, match="replayed"):
        script.TranslationSystem("usual", translator, settings).translate(["the dog"])
    (said,) = script.Launched("launched", translator, settings).translate(["the dog"])
    assert isinstance(said, str)
    assert script.NATGenerator.capture_devices == ("cpu", "cuda")
