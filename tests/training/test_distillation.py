"""Sequence-level distillation: line by line, resumable, usable as training data."""

import gzip
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from regard import SearchSettings, Translator, UserError
from regard.console import LineProgress
from regard.data.builtin.corpus import load_pairs
from regard.data.text.readers import Pair, read_parallel
from regard.evaluation.metrics import choose_closest, chrf
from regard.pipelines import translator
from regard.training.distillation import Corpus, Distillation, distill
from tests.conftest import SMALL, Command, settings_of
from tests.forks import Forked

GREEDY = ("--beam", "1", "--device", "cpu")
LINES = 40
LONG = "I love apples and books " * 30


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translator, "WINDOW", 8)


@pytest.fixture
def corpus(toy: Path, tmp_path: Path) -> list[Pair]:
    """Lines of the toy corpus including blank lines and a long line, as corpus.en and corpus.zh."""
    pairs = list(islice(read_parallel(toy / "train.en", toy / "train.zh"), LINES))
    pairs[3] = pairs[-1] = Pair("", "")
    pairs[20] = Pair(LONG, "太长")
    for side, language in enumerate(("en", "zh")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (tmp_path / f"corpus.{language}").write_text(text, encoding="utf-8")
    return pairs


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def expected(trained_run: Path, corpus: list[Pair]) -> list[str]:
    """The teacher's translations, empty for blank and for long lines."""
    found = Translator.load(trained_run)([pair.source for pair in corpus], beam=1)
    return ["" if pair.source == LONG else text for pair, text in zip(corpus, found, strict=True)]


# What is written


def test_output_files_hold_the_source_and_the_translations_line_by_line(
    corpus: list[Pair], trained_run: Path, tmp_path: Path, command: Command
) -> None:
    out = ("--out-src", tmp_path / "d.en", "--out-tgt", tmp_path / "d.zh")
    answer = command("distill", trained_run, "--src", tmp_path / "corpus.en", *out, "--longest", 50, *GREEDY)
    assert (answer.code, answer.err) == (0, "")
    assert f"{LINES} lines: 2 blank, 1 of more than 50 tokens, {LINES - 3} translated" in answer.out
    assert f"next: regard train --src {tmp_path}/d.en --tgt {tmp_path}/d.zh" in answer.out
    assert (tmp_path / "d.en").read_bytes() == (tmp_path / "corpus.en").read_bytes()
    assert lines(tmp_path / "d.zh") == expected(trained_run, corpus)
    assert lines(tmp_path / "d.zh")[0] == "我喜欢苹果"
    note = json.loads((tmp_path / "d.zh.json").read_text(encoding="utf-8"))
    weights = (trained_run / "best" / "model.safetensors").read_bytes()
    assert note["teachers"] == [hashlib.sha256(weights).hexdigest()[:12]]
    assert note["settings"]["search"]["beam"] == 1
    assert (note["complete"], note["pairs"], note["blank"], note["too_long"]) == (True, LINES, 2, 1)
    assert note["corpus"]["lines"] == LINES
    for name, checksum in note["files"].items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == checksum
    assert note["files"].keys() == {"d.en", "d.zh"}


@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
@pytest.mark.parametrize("source", ["en.gz", "tsv", "jsonl"])
def test_tsv_and_jsonl_hold_the_same_pairs(
    kind: str, source: str, corpus: list[Pair], trained_run: Path, tmp_path: Path, command: Command
) -> None:
    path = tmp_path / f"in.{source}"
    if source == "en.gz":
        path.write_bytes(gzip.compress((tmp_path / "corpus.en").read_bytes()))
    else:
        rows = (f"{s}\t{t}" if source == "tsv" else json.dumps({"source": s, "target": t}) for s, t in corpus)
        path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    out = tmp_path / f"d.{kind}"
    assert command("distill", trained_run, "--src", path, "--out", out, "--longest", 50, *GREEDY).code == 0
    distilled = [Pair(pair.source, text) for pair, text in zip(corpus, expected(trained_run, corpus), strict=True)]
    assert list(read_parallel(out)) == distilled


@pytest.mark.usefixtures("short_builtin_corpus")
def test_training_pairs_of_a_recipe_can_be_distilled(
    trained_run: Path, tmp_path: Path, command: Command, toy: Path
) -> None:
    short = ("--search", "max_length=5")
    answer = command("distill", trained_run, "--recipe", "demo", "--out", tmp_path / "d.tsv", *GREEDY, *short)
    assert answer.code == 0
    assert "but the longest training source has" in answer.err  # the toy corpus has shorter sentences
    assert [pair.source for pair in read_parallel(tmp_path / "d.tsv")] == [p.source for p in load_pairs("train")]
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"data: {{source: {toy}/train.en, target: {toy}/train.zh, hold_out: 30}}\n")
    answer = command("distill", trained_run, "--recipe", recipe, "--out", tmp_path / "e.tsv", *GREEDY, *short)
    assert answer.out.startswith("470 lines")  # held-out validation pairs are not distilled


def test_reference_can_be_kept(corpus: list[Pair], trained_run: Path, tmp_path: Path, command: Command) -> None:
    sides = ("--src", tmp_path / "corpus.en", "--tgt", tmp_path / "corpus.zh")
    out = ("--out", tmp_path / "d.tsv", "--keep-reference", "--longest", 50)
    assert command("distill", trained_run, *sides, *out, *GREEDY).code == 0
    pairs = list(read_parallel(tmp_path / "d.tsv"))
    assert pairs[::2] == [Pair(pair.source, pair.target) for pair in corpus]
    assert [pair.target for pair in pairs[1::2]] == expected(trained_run, corpus)
    assert json.loads((tmp_path / "d.tsv.json").read_text(encoding="utf-8"))["pairs"] == 2 * LINES


@pytest.mark.parametrize("options", [(), ("--temperature", 0.7, "--seed", 3)], ids=["greedy", "sampled"])
def test_back_translations_are_sources(
    options: tuple[object, ...], corpus: list[Pair], trained_run: Path, tmp_path: Path, command: Command
) -> None:
    words = ("distill", trained_run, "--src", tmp_path / "corpus.en", *(options or GREEDY), "--longest", 50)
    assert command(*words, "--out", tmp_path / "forward.tsv").code == 0
    assert command(*words, "--out", tmp_path / "back.tsv", "--back-translate").code == 0
    pairs = list(read_parallel(tmp_path / "forward.tsv"))
    assert list(read_parallel(tmp_path / "back.tsv")) == [Pair(pair.target, pair.source) for pair in pairs]
    assert json.loads((tmp_path / "back.tsv.json").read_text(encoding="utf-8"))["settings"]["back_translate"]
    assert [pair.source for pair in pairs] == [pair.source for pair in corpus]


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_hypothesis_closest_to_the_reference_can_be_chosen(
    metric: str, corpus: list[Pair], trained_run: Path, tmp_path: Path, command: Command
) -> None:
    sources = [pair.source for pair in corpus[:10]]
    found = Translator.load(trained_run).hypotheses(sources, SearchSettings(beam=4, n_best=4))
    rows = (f"{source}\t{hypotheses[-1].text}\n" for source, hypotheses in zip(sources, found, strict=True))
    (tmp_path / "in.tsv").write_text("".join(rows), encoding="utf-8")  # the last hypothesis is the reference
    words = ("distill", trained_run, "--src", tmp_path / "in.tsv", "--beam", 4)
    assert command(*words, "--out", tmp_path / "d.tsv", "--closest", metric).code == 0
    assert (tmp_path / "d.tsv").read_bytes() == (tmp_path / "in.tsv").read_bytes()
    assert command(*words, "--out", tmp_path / "few.tsv", "--closest", metric, "--n-best", 2).code == 0
    chosen = [pair.target for pair in read_parallel(tmp_path / "few.tsv")]
    for text, hypotheses in zip(chosen, found, strict=True):
        texts = [hypothesis.text for hypothesis in hypotheses]
        assert text in texts[:2]
        assert text == texts[choose_closest(texts[:2], texts[-1], metric, "zh")]


def test_closest_hypothesis_is_measured_and_ties_keep_the_first() -> None:
    texts = ["the cat sat", "a dog stood here", "a dog stood there", "a dog stood there"]
    assert choose_closest(texts, "a dog stood there", "chrf") == choose_closest(texts, "a dog stood there", "bleu") == 2
    assert choose_closest(["x", "y"], "z", "chrf") == 0


def test_tabs_and_line_ends_in_texts_do_not_break_the_file(trained_run: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"source": "I\tlove\napples", "target": ""}) + "\n")
    for name in ("d.tsv", "d.jsonl"):
        out = ("--out", tmp_path / name)
        assert command("distill", trained_run, "--src", tmp_path / "in.jsonl", *out, *GREEDY).code == 0
    (table,), (objects,) = (list(read_parallel(tmp_path / name)) for name in ("d.tsv", "d.jsonl"))
    assert (table.source, objects.source) == ("I love apples", "I\tlove\napples")


def test_lines_beyond_the_learned_positions_are_too_long(loaded_learned: Translator) -> None:
    taken: list[Pair] = []
    corpus = Corpus(lambda: [Pair("a b", ""), Pair("a b " * 9, "")], has_references=False)
    counts = distill(loaded_learned, corpus, Distillation(search=SearchSettings(beam=1, max_length=3)), taken.extend)
    assert (counts.lines, counts.blank, counts.long) == (2, 0, 1)
    assert taken[1].target == ""


@pytest.fixture
def loaded_learned() -> Translator:
    from regard import Tokenizer, Transformer, TransformerConfig
    from regard.data.text.tokenizer import Vocabularies

    tokenizer = Tokenizer.train(["a b"] * 3, 270)
    size = {"width": 8, "heads": 2, "hidden": 8, "encoder_layers": 1, "decoder_layers": 1}
    config = TransformerConfig.base(len(tokenizer), positions="learned", max_length=12, **size)
    return Translator(Transformer(config), Vocabularies(tokenizer, tokenizer))


# Going on


@pytest.mark.parametrize("options", [(), ("--keep-reference",), ("--back-translate",)])
def test_resumed_output_is_byte_identical(
    options: tuple[str, ...], corpus: list[Pair], trained_run: Path, tmp_path: Path, command: Command
) -> None:
    words = ("distill", trained_run, "--src", tmp_path / "corpus.en", "--tgt", tmp_path / "corpus.zh", *GREEDY)
    words = (*words, "--longest", 50, *options)
    whole = (tmp_path / "w.en", tmp_path / "w.zh")
    part = (tmp_path / "p.en", tmp_path / "p.zh")
    assert command(*words, "--out-src", whole[0], "--out-tgt", whole[1]).code == 0
    source, target = (path.read_bytes() for path in whole)
    note = json.loads((tmp_path / "w.zh.json").read_text(encoding="utf-8"))
    for cut_source, cut_target in ((0, None), (300, 200), (len(source), 1), (201, len(target)), (None, None)):
        for path, content, cut in zip(part, (source, target), (cut_source, cut_target), strict=True):
            path.unlink(missing_ok=True)
            if cut is not None:
                path.write_bytes(content[:cut])
        shutil.copy(tmp_path / "w.zh.json", tmp_path / "p.zh.json")
        answer = command(*words, "--out-src", part[0], "--out-tgt", part[1], "--resume")
        assert (answer.code, answer.err) == (0, "")
        assert (part[0].read_bytes(), part[1].read_bytes()) == (source, target)
        found = json.loads((tmp_path / "p.zh.json").read_text(encoding="utf-8"))
        assert (found["blank"], found["too_long"], found["pairs"]) == (2, 1, note["pairs"])
        assert list(found["files"].values()) == list(note["files"].values())


def signal_at_first_progress(number: signal.Signals) -> None:
    """Send this process a signal when it has written its first lines."""
    advance = LineProgress.advance

    def advance_and_signal(progress: LineProgress, lines: int) -> None:
        advance(progress, lines)
        os.kill(os.getpid(), number)

    LineProgress.advance = advance_and_signal  # type: ignore[method-assign]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_killed_process_can_be_resumed(
    number: signal.Signals,
    toy: Path,
    trained_run: Path,
    tmp_path: Path,
    command: Command,
    fork: Callable[..., Forked],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # the process uses the default window size
    source, part, whole = tmp_path / "in.en", tmp_path / "part.tsv", tmp_path / "whole.tsv"
    text = (toy / "train.en").read_text(encoding="utf-8").splitlines()
    source.write_text("".join(f"{line}\n" for line in islice(cycle(text), 5000)), encoding="utf-8")
    words = ("distill", trained_run, "--src", source, *GREEDY, "--search", "max_length=3")
    process = fork(*words, "--out", part, prepare=partial(signal_at_first_progress, number))
    _, err = process.communicate(timeout=300)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert number != signal.SIGINT or "--resume" in err
    assert 0 < part.read_bytes().count(b"\n") < 5000
    assert not json.loads((tmp_path / "part.tsv.json").read_text(encoding="utf-8"))["complete"]
    assert command(*words, "--out", part, "--resume").code == 0
    assert command(*words, "--out", whole).code == 0
    assert part.read_bytes() == whole.read_bytes()


def test_resuming_with_other_inputs_is_rejected(
    corpus: list[Pair], trained_run: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "d.tsv"
    words = ("distill", trained_run, "--src", tmp_path / "corpus.en", "--out", out)
    assert command(*words, *GREEDY).code == 0
    before = out.read_bytes()
    message = command(*words, "--beam", 2, "--resume").error
    assert "settings.search.beam 1, not 2" in message
    other = shutil.copytree(trained_run / "best", tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, other / "model.safetensors")
    assert "started with teachers [" in command("distill", other, *words[2:], *GREEDY, "--resume").error
    (tmp_path / "corpus.en").write_text("I love apples\n" * LINES)
    assert "started with corpus.sha256 " in command(*words, *GREEDY, "--resume").error
    (tmp_path / "d.tsv.json").write_text("{")
    assert "d.tsv.json: missing or damaged" in command(*words, *GREEDY, "--resume").error
    assert out.read_bytes() == before


# Errors


def test_invalid_options_are_rejected_without_output(
    corpus: list[Pair], trained_run: Path, tmp_path: Path, command: Command
) -> None:
    src, out = ("--src", tmp_path / "corpus.en"), ("--out", tmp_path / "d.tsv")
    (tmp_path / "old.tsv").write_text("mine\n")
    (tmp_path / "note.tsv.json").write_text("mine\n")
    (tmp_path / "bad.en").write_bytes(b"I\n\xff\n")
    cases: list[tuple[tuple[object, ...], str]] = [
        ((*src,), "needs either --out"),
        ((*src, *out, "--out-src", tmp_path / "a"), "needs either --out"),
        ((*src, "--out", tmp_path / "d.zh"), "must end in .tsv or .jsonl"),
        ((*src, "--out", tmp_path / "d.tsv.gz"), "must end in .tsv or .jsonl"),
        ((*src, "--out-src", tmp_path / "a", "--out-tgt", tmp_path / "a"), "are the same file"),
        ((*src, "--out-src", tmp_path / "a.tsv", "--out-tgt", tmp_path / "b"), "holds both sides"),
        ((*src, "--out", tmp_path / "d.parquet"), "must end in .tsv or .jsonl"),
        ((*src, "--out-src", tmp_path / "a", "--out-tgt", tmp_path / "corpus.en", "--resume"), "is an input file"),
        ((*src, "--out", tmp_path / "old.tsv"), "old.tsv already exists"),
        ((*src, "--out", tmp_path / "old.tsv", "--resume"), "old.tsv.json: missing or damaged"),
        ((*src, "--out", tmp_path / "note.tsv"), "note.tsv.json already exists"),
        ((*src, *out, "--recipe", "demo"), "needs either --src"),
        ((*out,), "needs either --src"),
        ((*src, *out, "--set", "training.seed=2"), "--set changes a recipe"),
        ((*src, *out, "--closest", "chrf"), "need references"),
        ((*src, *out, "--keep-reference"), "need references"),
        ((*src, *out, "--closest", "ter"), "closest"),
        ((*src, *out, "--closest", "chrf", "--beam", 1), "several translations"),
        ((*src, *out, "--n-best", 2), "--n-best needs --closest"),
        ((*src, *out, "--longest", 1), "longest"),
        (("--src", tmp_path / "bad.en", *out), "bad.en, line 2"),
        ((*src, *out, "--with", tmp_path / "none"), "no such model folder"),
    ]
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for words, message in cases:
        assert message in command("distill", trained_run, *words).error, words
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_missing_references_are_rejected_in_python(trained_run: Path) -> None:
    corpus = Corpus(lambda: [Pair("I love apples", "")], has_references=False)
    with pytest.raises(UserError, match="need references"):
        distill(Translator.load(trained_run), corpus, Distillation(keep_reference=True), print)


# The student


def test_student_learns_from_distilled_data(toy: Path, trained_run: Path, tmp_path: Path, command: Command) -> None:
    out = ("--out-src", tmp_path / "d.en", "--out-tgt", tmp_path / "d.zh")
    assert command("distill", trained_run, "--src", toy / "train.en", *out, *GREEDY).code == 0
    files = ("--src", tmp_path / "d.en", "--tgt", tmp_path / "d.zh", "--out", tmp_path / "student")
    trained = command("train", *files, *settings_of(SMALL | {"model.decoder_layers": 1}))
    assert (trained.code, trained.err) == (0, "")
    assert "470 training pairs" in trained.out
    taught = (tmp_path / "d.zh").read_text(encoding="utf-8").splitlines()
    sources = (tmp_path / "d.en").read_text(encoding="utf-8").splitlines()
    learned = command("translate", tmp_path / "student", *sources[::10]).out.splitlines()
    score = chrf(learned, taught[::10]).value  # near 0 for an untrained model; its exact value depends on rounding
    assert score > 50
