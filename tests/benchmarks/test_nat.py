"""benchmarks/nat.py and its report."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import nat as script
from benchmarks.reports import nat as report
from benchmarks.translation import Table
from regard import Translator
from regard.decoding.cuda_graph.nat import CapturedNAT
from regard.models.nat import NATransformer, NATransformerConfig
from tests.interop.random_models import random_translator


def test_systems_are_configurations_of_the_table() -> None:
    configurations = Table.load("multi30k-nat").configurations
    names = [name for name, _, _ in script.SYSTEMS]
    assert {configuration for _, configuration, _ in script.SYSTEMS} <= configurations.keys()
    assert {*report.ONE_PASS, *script.INT8_ON_CPU, report.GREEDY, report.DEEP, report.TEN} <= set(names)


def test_turns_are_consecutive_calls_of_a_system() -> None:
    calls = [(0, 9), (0, 9), (1, 9), (0, 0.001), (0, 0.003), (1, 0.005), (0, 0.004), (1, 0.007)]
    timer = script.CallTimer(calls)
    assert timer.turns(0) == [2.0, 4.0]
    assert timer.turns(1) == [5.0, 7.0]


def test_results_contain_no_paths_of_this_machine(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_2016_flickr.en.gz").write_bytes(gzip.compress(b"I love apples\nWe see cats\n"))
    (tmp_path / "test_2016_flickr.de.gz").write_bytes(gzip.compress("我喜欢苹果\n我们看见猫\n".encode()))
    (tmp_path / "teacher-seed1").mkdir()
    (tmp_path / "teacher-seed1" / "run").symlink_to(trained_run)
    words = ["timing", str(tmp_path), str(tmp_path), "--device", "cpu", "--seconds", "0", "--batch", "1", "2"]
    monkeypatch.setattr(sys, "argv", ["nat.py", *words])
    counts: list[list[int]] = []
    save_results = script.save_results

    def count_and_save(path: Path, *others: Any) -> None:
        save_results(path, *others)
        rows = json.loads(path.read_text())["results"]
        counts.append([len(rows[0]["timings"]), sum(row["score"] is not None for row in rows)])

    monkeypatch.setattr(script, "save_results", count_and_save)
    script.main()
    assert counts == [[1, 0], [2, 0], [2, 1], [2, 2], [2, 3], [2, 4], [2, 4]]  # timings and scores so far
    text = (tmp_path / "nat-cpu.json").read_text()
    assert str(tmp_path) not in text
    assert str(trained_run) not in text
    result = json.loads(text)
    assert "--device cpu" in result["command"]
    assert [row["name"] for row in result["results"]] == [
        *("teacher, greedy", "teacher, greedy, int8", "teacher, beam 5", "teacher, beam 5, int8")
    ]
    assert [*result["configurations"]] == ["teacher"]
    assert [len(timing["turns"]) for timing in result["results"][0]["timings"]] == [5, 5]


def row(name: str, score: float, *milliseconds: float) -> dict[str, Any]:
    timings = [
        {"batch": b, "milliseconds": ms, "turns": [ms - 1, ms + 2]} for b, ms in zip((1, 8), milliseconds, strict=True)
    ]
    return {"name": name, "parameters": 2_600_000, "score": {"value": score}, "timings": timings}


def example_result() -> dict[str, Any]:
    rows = [row(report.GREEDY, 38, 60, 90), row("teacher, beam 5", 40, 90, 200), row(report.DEEP, 39, 24, 18)]
    rows += [row(name, 36 - n, 12 + 3 * n, 18 * (n + 1)) for n, name in enumerate(report.ONE_PASS[:4])]
    rows += [row(report.TEN, 37, 40, 180), row(f"{report.TEN}, 3 lengths", 38, 80, 300)]
    rows += [row(f"mask-predict, {n} iterations, 5 lengths, reranked", 39.2, 90, 400) for n in (4, 10)]
    students = {name: {"warm": name == "ctc"} for name in ("deep", "end", "ctc")}
    return {"machine": "M", "results": rows, "rounded_to_bfloat16": ["end", "ctc"], "students": students}


def test_claims_follow_from_the_results() -> None:
    text = report.write_claims({"nat-cpu": example_result()})
    assert "one pass is 2.9 to 5.0 times as fast at batch 1 and 1.2 to 5.0 times as fast at batch 8" in text
    assert "ten iterations are 1.5 and 0.5 times as fast" in text
    assert "CUDA graphs" not in text
    assert "it has 39.0 BLEU with greedy search; the best single pass has 36.0" in text
    assert "one pass is 1.1 to 2.0 times as fast at batch 1 and 0.2 to 1.0 times as fast at batch 8" in text
    assert "We measure 85 % (does not hold), 82 % (does not hold) and 92 % (does not hold)" in text
    assert "at 0.7 and 0.7 times the speed of its greedy search" in text
    assert "15 times for one pass does not hold and 2 times for ten iterations does not hold" in text


def test_claims_compare_eager_systems_with_each_other() -> None:
    result = example_result()
    result["results"].append(row(report.GREEDY + report.EAGER, 38, 1200, 600))
    result["results"] += [row(name + report.EAGER, 36, 60, 100) for name in report.ONE_PASS[:4]]
    text = report.write_claims({"nat-gpu": result})
    assert "one pass is 20.0 to 20.0 times as fast at batch 1 and 6.0 to 6.0 times as fast at batch 8" in text
    assert "60.0 instead of 1200.0 ms, and mask-predict, 1 iteration 12.0 instead of 60.0 ms" in text
    assert "15 times for one pass holds and 2 times for ten iterations does not hold" in text


def test_trade_off_table_has_spread_and_conditions() -> None:
    result = example_result() | {"what": "W", "versions": {"torch": "1"}, "date": "D"}
    text = report.write_trade_off({"nat-test": result})
    assert "| 12+1 layers, greedy | 39.00 | 2.6 M | 24.0 ± 1.5 (2.50×) | 18.0 ± 1.5 (5.00×) |" in text
    assert "The weights of end and ctc were stored in bfloat16" in text
    assert "Models alternate" in text
    assert "and of further captions; ctc started from the teacher's encoder" in text
    assert "eager" not in text


def test_quality_table_has_the_share_of_the_teacher() -> None:
    def run(value: float, search: str = "beam 5") -> dict[str, Any]:
        about = {"training_seconds": 60.0, "machine": "M", "versions": {"torch": "1"}, "date": "D"}
        return about | {"val": value + 1, "search": search, "score": {"value": value, "signature": "tok:none"}}

    found = {"teacher-seed1": run(40), "raw-dag-seed1": run(38, "viterbi"), "raw-dag-seed2": run(39, "beam 5")}
    untested = {key: value for key, value in run(50).items() if key != "score"}
    text = report.write_quality(found | {"raw-ctc-seed1": untested})
    assert "| teacher | beam 5 | 1 | 41.00 | **40.00** | 100.0 % | 60 |" in text
    assert "| raw-dag | viterbi, beam 5 | 2 | 39.50 | **38.50** ± 0.71 | 96.2 % | 60 |" in text
    assert "raw-ctc" not in text
    assert report.write_quality({"raw-ctc-seed1": untested}) == ""


def test_eager_systems_do_not_replay_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def replay(self: object, *given: object) -> None:
        raise AssertionError("a CUDA graph was replayed")

    monkeypatch.setattr(script.NATGenerator, "capture_devices", ("cpu", "cuda"))
    monkeypatch.setattr(CapturedNAT, "decode", replay)
    vocabularies = random_translator("post").vocabularies
    sizes = {"width": 32, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "hidden": 64}
    config = NATransformerConfig.base(len(vocabularies.target), length="ctc", **sizes)
    translator = Translator(NATransformer(config), vocabularies)
    settings = translator.resolve_settings()
    with pytest.raises(AssertionError, match="replayed"):
        script.TranslationSystem("captured", translator, settings).translate(["the dog"])
    (translation,) = script.EagerSystem("eager", translator, settings).translate(["the dog"])
    assert isinstance(translation, str)
    assert script.NATGenerator.capture_devices == ("cpu", "cuda")
