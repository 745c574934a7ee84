"""Metrics, reports, comparisons and `regard evaluate` for translations."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch

from regard import Translator, UserError
from regard.data.text.languages import tokenisation_for
from regard.decoding.settings import SearchSettings
from regard.evaluation.comparison import compare, compare_with_stored, paired_bootstrap
from regard.evaluation.metrics import Metrics, bleu, check_tokenisation, chrf, exact_match
from regard.evaluation.report import Report, check_scores_writable, read_reports, save_report
from regard.evaluation.translation import System, SystemOutput, evaluate, fingerprint_model, tokenisation_warning

Command = Callable[..., Any]

SOURCES = ["Ein Mann fährt Rad.", "Zwei Hunde spielen im Schnee.", "Das Mädchen liest ein Buch.", "Es regnet heute."]
REFERENCES = [
    "A man rides a bike.",
    "Two dogs are playing in the snow.",
    "The girl is reading a book.",
    "It is raining today.",
]
GOOD = [
    "A man rides a bike.",
    "Two dogs play in the snow.",
    "The girl is reading a book.",
    "It rains today, it is raining.",
]
POOR = ["The bike.", "Dogs in the snow in the snow.", "A girl reads.", "It rains."]
CHINESE = ["我喜欢苹果。", "她昨天买了三本书。"]
NEAR_CHINESE = ["我喜欢梨。", "她昨天买了两本书。"]


def report(translations: list[str] = GOOD, beam: int = 5, **choices: Any) -> Report:
    output = SystemOutput(translations, SearchSettings(beam=beam), "0123456789ab")
    return evaluate(output, SOURCES, REFERENCES, Metrics(**choices))


def altered(original: Report, **conditions: Any) -> Report:
    return Report.from_dict(original.as_dict() | {"conditions": original.as_dict()["conditions"] | conditions})


# Values and signatures


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenisation", ["13a", "intl", "char", "none"])
def test_scores_are_those_of_sacrebleu(tokenisation: str, lowercase: bool) -> None:
    wanted = sacrebleu.corpus_bleu(GOOD, [REFERENCES], tokenize=tokenisation, lowercase=lowercase)
    assert bleu(GOOD, REFERENCES, tokenisation, lowercase).value == wanted.score
    scores = report(tokenisation=tokenisation, lowercase=lowercase, ter=True).scores
    assert scores["BLEU"] == wanted.score
    assert scores["chrF2"] == sacrebleu.metrics.CHRF(lowercase=lowercase).corpus_score(GOOD, [REFERENCES]).score
    assert scores["TER"] == sacrebleu.corpus_ter(GOOD, [REFERENCES]).score
    assert chrf(GOOD, REFERENCES).value == sacrebleu.corpus_chrf(GOOD, [REFERENCES]).score


def test_scores_match_manual_calculation() -> None:
    assert bleu(["a b c d e"], ["a b c d e f"], "none").value == pytest.approx(100 * 2.718281828459045 ** (1 - 6 / 5))
    found = evaluate(SystemOutput(["a b c d"]), ["x"], ["a b x d"], Metrics(ter=True))
    assert found.scores["TER"] == pytest.approx(25)  # one of four words is replaced
    assert chrf(["abc"], ["abc"]).value == pytest.approx(100)
    assert exact_match(["a", "b", "c", "d"], ["a", "b", "c", "x"]) == 75


def test_signatures_state_tokenisation_and_case() -> None:
    signatures = report(tokenisation="none", lowercase=True, ter=True).conditions.signatures
    assert signatures == {
        "BLEU": f"nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:{sacrebleu.__version__}",
        "chrF2": f"nrefs:1|case:lc|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}",
        "TER": f"nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:{sacrebleu.__version__}",
    }
    assert "case:mixed" in chrf(GOOD, REFERENCES).signature
    assert bleu(GOOD, REFERENCES).signature.endswith("|reflen:26")


def test_tokenised_lowercased_bleu_follows_published_protocols() -> None:
    tokenised = [line.replace(".", " .").replace(",", " ,") for line in GOOD]
    references = [line.replace(".", " .") for line in REFERENCES]
    lowered = [line.lower() for line in tokenised], [line.lower() for line in references]
    # "none" on tokenised text is equal to "13a" on plain text.
    assert bleu(tokenised, references, "none", True).value == bleu(GOOD, REFERENCES, "13a", True).value
    assert bleu(tokenised, references, "none", True).value == bleu(*lowered, "none").value
    assert bleu(GOOD, REFERENCES, "none", True).value != bleu(GOOD, REFERENCES, "13a", True).value


def test_ter_of_chinese_counts_characters() -> None:
    found = evaluate(SystemOutput(NEAR_CHINESE), ["I", "she"], CHINESE, Metrics(tokenisation="zh", ter=True))
    assert found.scores["TER"] == pytest.approx(100 * 3 / 15)
    assert "norm:yes|punct:yes|asian:yes" in found.conditions.signatures["TER"]
    assert found.conditions.data.reference_length == 15


def test_tokenizer_is_chosen_by_language() -> None:
    assert [tokenisation_for(code) for code in ("de", "zh-CN", "zh_TW", "ja", "target")] == [
        *("13a", "zh", "zh", "ja-mecab", "13a")
    ]


def test_unknown_tokenizer_is_rejected_with_a_list() -> None:
    for check in (check_tokenisation, lambda name: bleu(GOOD, REFERENCES, name)):
        with pytest.raises(UserError, match=r"'moses'; choose one of 13a, char,.*intl,.*none,.*zh"):
            check("moses")


@pytest.mark.parametrize(
    ("tokenisation", "module", "package"),
    [
        ("ja-mecab", "tokenizer_ja_mecab", r"sacrebleu\[ja\]"),
        ("ko-mecab", "tokenizer_ko_mecab", r"sacrebleu\[ko\]"),
        ("flores200", None, "sentencepiece"),
    ],
)
def test_missing_package_of_a_tokenizer_is_named(
    tokenisation: str, module: str | None, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module is None:
        monkeypatch.setitem(sys.modules, "sentencepiece", None)
    else:
        monkeypatch.setattr(f"sacrebleu.tokenizers.{module}.MeCab", None)
    with pytest.raises(UserError, match=rf"'{tokenisation}' needs a package.*pip install '{package}', or choose char"):
        bleu(GOOD, REFERENCES, tokenisation)


def test_different_numbers_of_lines_are_rejected() -> None:
    with pytest.raises(UserError, match="3 translations cannot be scored against 4 references"):
        report(GOOD[:3])
    with pytest.raises(UserError, match="3 sources do not match 4 references"):
        evaluate(SystemOutput(GOOD), SOURCES[:3], REFERENCES, Metrics())
    with pytest.raises(UserError, match="no references"):
        evaluate(SystemOutput([]), [], [], Metrics())


@pytest.mark.parametrize(
    ("side", "message"), [(0, "the translations look tokenised"), (1, "the references look token")]
)
def test_warning_if_only_one_side_is_tokenised(side: int, message: str) -> None:
    sides = [REFERENCES, REFERENCES]
    assert tokenisation_warning(*sides) is None
    sides[side] = [line.replace(".", " .") for line in REFERENCES]
    assert message in str(tokenisation_warning(*sides))
    sides[1 - side] = sides[side]
    assert tokenisation_warning(*sides) is None
    assert tokenisation_warning(CHINESE, ["no full stop", "at all"]) is None


# Conditions and reports


def test_report_states_data_search_and_model() -> None:
    found = report()
    conditions = found.conditions
    files = "".join(f"{line}\n" for line in [*SOURCES, *REFERENCES]).encode("utf-8")
    assert conditions.data.sha256 == hashlib.sha256(files).hexdigest()[:12]
    assert (conditions.data.lines, conditions.data.reference_length) == (4, 26)
    assert conditions.search == SearchSettings(beam=5).model_dump(mode="json")
    assert found.facts() == (
        "4 sentences, beam 5, length penalty average 1, 26 reference tokens, "
        f"data {conditions.data.sha256}, model 0123456789ab"
    )
    assert [str(score) for score in found.results()] == [
        f"BLEU {found.scores['BLEU']:.2f}  {conditions.signatures['BLEU']}",
        f"chrF2 {found.scores['chrF2']:.2f}  {conditions.signatures['chrF2']}",
    ]


def test_facts_list_search_settings_that_are_not_defaults() -> None:
    output = SystemOutput(GOOD, SearchSettings(beam=3, length_penalty="wu", alpha=0.6, max_extra=7))
    facts = evaluate(output, SOURCES, REFERENCES, Metrics()).facts()
    assert "beam 3, length penalty wu 0.6, max_extra 7, 26 reference" in facts
    assert "search unknown" in evaluate(SystemOutput(GOOD), SOURCES, REFERENCES, Metrics()).facts()


def test_report_survives_a_json_round_trip() -> None:
    found = report(ter=True)
    assert Report.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_damaged_report_is_rejected_with_its_key() -> None:
    values = report().as_dict()
    with pytest.raises(UserError, match=r"here: conditions.*lines"):
        Report.from_dict(values | {"conditions": values["conditions"] | {"data": {}}}, "here")
    with pytest.raises(UserError, match=r"scores\.METEOR has no signature"):
        Report.from_dict(values | {"scores": {"METEOR": 1.0}})


# Comparison


def test_scores_under_the_same_conditions_are_compared() -> None:
    good, poor = report(GOOD), report(POOR)
    for found in compare(good, poor):
        assert found.difference == good.scores[found.metric] - poor.scores[found.metric] > 0
        assert str(found).startswith(f"{found.metric} +")
    assert [found.metric for found in compare(good, report(POOR, ter=True))] == ["BLEU", "chrF2"]


def test_default_beam_equals_the_same_explicit_beam() -> None:
    default = evaluate(SystemOutput(GOOD, SearchSettings()), SOURCES, REFERENCES, Metrics())
    assert compare(report(beam=5), default)[0].difference == 0


OLDER = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:1.5.1"
DIFFERENT = {
    "beam": (report(), report(beam=4), [r"search beam \(5 against 4\)"]),
    "tokenisation": (report(), report(tokenisation="char"), [r"tokenisation \(13a against char\)", "reference length"]),
    "case": (report(), report(lowercase=True), [r"lowercase \(False against True\)"]),
    "lines": (
        report(),
        evaluate(SystemOutput(GOOD[:3], SearchSettings(beam=5)), SOURCES[:3], REFERENCES[:3], Metrics()),
        [r"data lines \(4 against 3\)", r"data hash \(\w{12} against \w{12}\)", r"reference length \(26 against 21\)"],
    ),
    "source": (
        report(),
        evaluate(SystemOutput(GOOD, SearchSettings(beam=5)), [*SOURCES[:3], "Regen."], REFERENCES, Metrics()),
        [r"differ in data hash \(\w{12} against \w{12}\); evaluate"],
    ),
    "version": (
        report(),
        altered(report(), signatures=report().conditions.signatures | {"BLEU": OLDER}),
        [rf"differ in BLEU version \({sacrebleu.__version__} against 1\.5\.1\); evaluate"],
    ),
}


@pytest.mark.parametrize(("one", "two", "messages"), DIFFERENT.values(), ids=DIFFERENT)
def test_scores_under_different_conditions_are_rejected_with_the_differences(
    one: Report, two: Report, messages: list[str]
) -> None:
    for message in messages:
        with pytest.raises(UserError, match=message):
            compare(one, two)


def test_each_difference_is_listed_once() -> None:
    differences = report().conditions.differences(report(tokenisation="none", lowercase=True).conditions)
    assert list(differences) == ["tokenisation", "lowercase", "reference length"]


def test_scores_without_a_common_metric_are_rejected() -> None:
    one, other = report().as_dict(), report().as_dict()
    one["scores"].pop("BLEU")
    other["scores"].pop("chrF2")
    with pytest.raises(UserError, match="one has chrF2, the other BLEU"):
        compare(Report.from_dict(one), Report.from_dict(other))


def test_missing_search_setting_has_its_default() -> None:
    now = report()
    before = {key: value for key, value in now.conditions.search.items() if key != "max_extra"}
    assert compare(now, altered(now, search=before))[0].difference == 0
    with pytest.raises(UserError, match=r"search max_extra \(20 against 7\)"):
        compare(now, altered(now, search=before | {"max_extra": 7}))


def test_translations_with_unknown_search_can_be_compared() -> None:
    assert compare(report(), evaluate(SystemOutput(POOR), SOURCES, REFERENCES, Metrics()))[0].difference > 0


def test_latest_stored_report_with_the_same_conditions_is_chosen() -> None:
    stored = [report(POOR), report(GOOD), report(POOR, beam=2)]
    nearest, differences = compare_with_stored(report(POOR), stored)
    assert nearest is stored[1]
    assert differences[0].difference < 0
    with pytest.raises(UserError, match=r"differ in search beam \(3 against 2\)"):
        compare_with_stored(report(beam=3), stored)
    with pytest.raises(UserError, match="no evaluation to compare with"):
        compare_with_stored(report(), [])


# Significance


def many(lines: list[str]) -> list[str]:
    return [f"{line} {i}" for i in range(25) for line in lines]


def test_identical_systems_do_not_differ_significantly() -> None:
    found = paired_bootstrap(SystemOutput(many(GOOD)), SystemOutput(many(GOOD)), many(REFERENCES), Metrics(ter=True))
    assert [one.metric for one in found] == ["BLEU", "chrF2", "TER"]
    assert all(one.p_value == 1 and one.estimate == one.against for one in found)


def test_one_better_sentence_in_a_hundred_is_not_significant() -> None:
    better = many(GOOD)
    better[1] = many(REFERENCES)[1]
    found = paired_bootstrap(SystemOutput(better), SystemOutput(many(GOOD)), many(REFERENCES), Metrics())
    assert all(one.p_value > 0.05 for one in found)


def test_clearly_better_system_is_significantly_better() -> None:
    good, poor, references = SystemOutput(many(GOOD)), SystemOutput(many(POOR)), many(REFERENCES)
    found = paired_bootstrap(good, poor, references, Metrics(), resamples=500)
    for one in found:
        assert one.p_value < 0.01
        assert one.estimate.mean - one.estimate.margin > one.against.mean + one.against.margin
        assert "|bs:500|seed:12345|" in one.signature
        assert "± " in str(one)
    scores = bleu(many(GOOD), references).value, chrf(many(GOOD), references).value
    assert [one.estimate.mean for one in found] == pytest.approx(scores, abs=1)


def test_bootstrap_is_deterministic() -> None:
    better = [*many(GOOD)[:50], *many(REFERENCES)[50:]]
    answers = [
        paired_bootstrap(SystemOutput(better), SystemOutput(many(GOOD)), many(REFERENCES), Metrics(), 200)
        for _ in range(2)
    ]
    assert answers[0] == answers[1]


def test_invalid_bootstrap_arguments_are_rejected() -> None:
    with pytest.raises(UserError, match="resamples: 0"):
        paired_bootstrap(SystemOutput(GOOD), SystemOutput(POOR), REFERENCES, Metrics(), 0)
    with pytest.raises(UserError, match="3 translations"):
        paired_bootstrap(SystemOutput(GOOD), SystemOutput(POOR[:3]), REFERENCES, Metrics())
    (bleu, _) = paired_bootstrap(SystemOutput(GOOD), SystemOutput(POOR), REFERENCES, Metrics(), 1)
    assert "bs:1|" in bleu.signature


# scores.json


@pytest.fixture
def model(trained_run: Path, tmp_path: Path) -> Path:
    """A writable copy of the run, with the scores of its training only."""
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    scores = content(run / "best")
    scores.pop("evaluations", None)  # another test may have evaluated the shared run
    (run / "best" / "scores.json").write_text(json.dumps(scores))
    return run


def content(folder: Path) -> Any:
    return json.loads((folder / "scores.json").read_text(encoding="utf-8"))


def test_reports_are_added_to_the_scores_of_training(tmp_path: Path) -> None:
    training = {"step": 300, "validation": {"bleu": 12.5}}
    (tmp_path / "scores.json").write_text(json.dumps(training))
    first, second = report(), report(beam=1)
    save_report(first, tmp_path)
    save_report(second, tmp_path)
    assert {key: content(tmp_path)[key] for key in training} == training
    assert read_reports(tmp_path / "scores.json") == [first, second]
    assert [path.name for path in tmp_path.iterdir()] == ["scores.json"]


def test_report_replaces_an_earlier_one_with_the_same_conditions(tmp_path: Path) -> None:
    save_report(report(POOR), tmp_path)
    save_report(report(POOR, beam=1), tmp_path)
    save_report(report(GOOD), tmp_path)
    kept = [(one.scores, one.conditions) for one in read_reports(tmp_path / "scores.json")]
    assert kept == [(one.scores, one.conditions) for one in (report(POOR, beam=1), report(GOOD))]


@pytest.mark.parametrize(
    ("damage", "advice"),
    [
        ('{"step": 3', "; repair or remove it"),
        *((damage, "; remove it") for damage in ("[1, 2]", '{"evaluations": {}}', '{"evaluations": [1]}')),
    ],
)
def test_damaged_scores_file_is_rejected_and_unchanged(damage: str, advice: str, tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text(damage)
    for check in (check_scores_writable, lambda folder: save_report(report(), folder)):
        with pytest.raises(UserError, match=rf"scores\.json.*{advice}$"):
            check(tmp_path)
    assert (tmp_path / "scores.json").read_text() == damage


def test_failed_write_leaves_the_scores_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_report(report(), tmp_path)
    before = (tmp_path / "scores.json").read_text()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UserError, match=r"scores\.json: cannot be written \(No space left on device\)"):
        save_report(report(beam=1), tmp_path)
    assert (tmp_path / "scores.json").read_text() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_read_only_folder_is_rejected_in_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_scores_writable(tmp_path)
    # Nothing is read-only to root, so the permission is replaced and not removed.
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path), mode) != (tmp_path, os.W_OK))
    with pytest.raises(UserError, match=r"cannot be written to, so scores\.json cannot be saved there; add --no-save"):
        check_scores_writable(tmp_path)


def test_scores_are_not_saved_if_the_model_was_replaced(model: Path) -> None:
    folder = model / "best"
    system = System.open(model)
    output = system.translate(SOURCES, SearchSettings(beam=1))
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"trained on")
    with pytest.raises(UserError, match="best: the model was replaced"):
        system.save_report(evaluate(output, SOURCES, REFERENCES, Metrics()))
    assert "evaluations" not in content(folder)


# The command


@pytest.fixture
def worse(trained_run: Path, tmp_path: Path) -> Path:
    """The same model with noise added to its weights."""
    translator = Translator.load(trained_run)
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in translator.model.parameters():
            weights.add_(0.15 * torch.randn_like(weights))
    (tmp_path / "worse").mkdir()
    translator.save(tmp_path / "worse")
    return tmp_path / "worse"


@pytest.fixture
def files(toy: Path, tmp_path: Path) -> tuple[object, ...]:
    for name in ("train.en", "train.zh"):
        lines = (toy / name).read_text(encoding="utf-8").splitlines()[::8]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return ("--src", tmp_path / "train.en", "--ref", tmp_path / "train.zh", "--device", "cpu")


def test_command_prints_conditions_and_saves_scores(model: Path, files: tuple[object, ...], command: Command) -> None:
    answer = command("evaluate", model, *files, "--beam", 2, "--ter")
    assert (answer.code, answer.err) == (0, "")
    facts, *scores = answer.out.splitlines()
    [kept] = read_reports(model / "best" / "scores.json")
    assert facts == kept.facts()
    assert facts.startswith("63 sentences, beam 2, length penalty average 1, ")
    assert facts.endswith(f", model {fingerprint_model(model / 'best')}")
    assert scores == [str(score) for score in kept.results()]
    assert [line.split()[0] for line in scores] == ["BLEU", "chrF2", "TER"]
    assert "tok:zh" in scores[0]
    assert content(model / "best")["validation"]["bleu"] > 50


def test_fingerprints_are_hashes_of_the_files(model: Path, files: tuple[Any, ...], command: Command) -> None:
    command("evaluate", model, *files, "--beam", 1)
    [kept] = read_reports(model / "best" / "scores.json")
    weights = (model / "best" / "model.safetensors").read_bytes()
    assert kept.model == hashlib.sha256(weights).hexdigest()[:12]
    both = files[1].read_bytes() + files[3].read_bytes()
    assert kept.conditions.data.sha256 == hashlib.sha256(both).hexdigest()[:12]


def test_no_save_leaves_the_folder_unchanged(model: Path, files: tuple[object, ...], command: Command) -> None:
    before = (model / "best" / "scores.json").read_bytes()
    assert command("evaluate", model, *files, "--beam", 1, "--no-save").code == 0
    assert (model / "best" / "scores.json").read_bytes() == before


def test_two_models_are_compared_with_a_significance_test(
    model: Path, worse: Path, files: tuple[object, ...], command: Command
) -> None:
    answer = command("evaluate", model, "--against", worse, *files, "--beam", 1, "--paired")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].startswith(f"{model}: 63 sentences, beam 1")
    assert lines[3].startswith(f"{worse}: 63 sentences, beam 1")
    assert lines[6] == f"{model} against {worse}:"
    assert [line.split()[:2] for line in lines[9:]] == [["BLEU", "p"], ["chrF2", "p"]]
    assert "bs:1000|seed:12345" in lines[9]
    reports = [read_reports(folder / "scores.json")[0] for folder in (model / "best", worse)]
    assert lines[7:9] == [str(difference) for difference in compare(*reports)]
    assert reports[0].model != reports[1].model


def test_file_of_translations_is_scored_like_a_model(
    model: Path, files: tuple[object, ...], tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "translations.txt"
    by_model = command("evaluate", model, *files, "--beam", 1, "--out", out)
    by_file = command("evaluate", out, *files)
    assert by_file.out.splitlines()[1:] == by_model.out.splitlines()[1:]
    assert "search unknown" in by_file.out
    answer = command("evaluate", out, "--against", model, *files, "--beam", 1, "--paired", "--json")
    found = json.loads(answer.out)
    assert [one["difference"] for one in found["differences"]] == [0, 0]
    assert [one["p_value"] for one in found["significance"]] == [1, 1]
    assert [one["model"] for one in found["evaluations"]] == [None, fingerprint_model(model / "best")]


def test_stored_score_is_compared_only_under_the_same_conditions(
    model: Path, worse: Path, files: tuple[object, ...], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("evaluate", worse, *files, "--beam", 1)
    stored = ("--against", worse / "scores.json")
    answer = command("evaluate", model, *stored, *files, "--beam", 1)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[-2].startswith("BLEU +")
    stored_report = read_reports(worse / "scores.json")[0]
    assert f"{worse / 'scores.json'}: {stored_report.facts()}, {stored_report.date}" in answer.out.splitlines()
    monkeypatch.setattr(System, "translate", lambda *_: pytest.fail("translated before checking"))
    refusal = command("evaluate", model, *stored, *files, "--beam", 2, "--lowercase").error
    assert "search beam (2 against 1)" in refusal
    assert "lowercase (True against False)" in refusal
    assert "--paired" in command("evaluate", model, *stored, *files, "--paired").error


def test_json_output_can_be_compared_with_later(
    model: Path, worse: Path, files: tuple[object, ...], tmp_path: Path, command: Command
) -> None:
    answer = command("evaluate", worse, *files, "--beam", 1, "--no-save", "--json")
    (tmp_path / "worse.json").write_text(answer.out, encoding="utf-8")
    answer = command("evaluate", model, *files, "--beam", 1, "--against", tmp_path / "worse.json", "--json")
    assert json.loads(answer.out)["differences"][0]["difference"] > 0


def test_invalid_arguments_are_rejected_before_translating(
    model: Path, files: tuple[object, ...], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(System, "translate", lambda *_: pytest.fail("translated before checking"))
    short = tmp_path / "short.txt"
    short.write_text("one\ntwo\n")
    evaluate_model = ("evaluate", model, *files)
    assert "--against" in command(*evaluate_model, "--paired").error
    assert "short.txt has 2 lines but the test set has 63" in command(*evaluate_model, "--against", short).error
    assert "no such file or folder" in command(*evaluate_model, "--against", tmp_path / "nowhere").error
    assert "none.json: no such file" in command(*evaluate_model, "--against", tmp_path / "none.json").error
    assert "--tokenize" in command(*evaluate_model, "--tokenize", "moses").error
    (model / "best" / "scores.json").write_text("{")
    assert "scores.json: damaged" in command(*evaluate_model).error


def test_command_warns_if_only_one_side_is_tokenised(
    files: tuple[object, ...], tmp_path: Path, command: Command
) -> None:
    for name, lines in (("s", SOURCES), ("plain.en", REFERENCES), ("tok.en", [r.replace(".", " .") for r in GOOD])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    answer = command("evaluate", tmp_path / "tok.en", "--src", tmp_path / "s", "--ref", tmp_path / "plain.en")
    assert answer.code == 0
    assert "the translations look tokenised" in answer.err


def test_lines_are_one_sequence_unless_sentences_are_split(
    model: Path, files: tuple[object, ...], tmp_path: Path, command: Command
) -> None:
    lines = ["I love apples! You buy tea", "We want dogs"]
    for name, content in (("two.en", lines), ("two.zh", ["我喜欢苹果你买茶", "我们要狗"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
    test_set = ("--src", tmp_path / "two.en", "--ref", tmp_path / "two.zh", "--out", tmp_path / "out.zh", "--beam", 2)
    translator, found = Translator.load(model), {}
    for options in ((), ("--split-sentences",)):
        answer = command("evaluate", model, *test_set, *options)
        assert answer.code == 0
        assert ("split into sentences" in answer.out) == bool(options)
        found[bool(options)] = (tmp_path / "out.zh").read_text(encoding="utf-8").splitlines()
    assert found == {split: translator(lines, beam=2, split=split) for split in (False, True)}
    whole, split = read_reports(model / "best" / "scores.json")
    assert (whole.conditions.split, split.conditions.split) == (False, True)
    assert whole.conditions.differences(split.conditions) == {"split": (False, True)}
    stored = whole.as_dict()
    del stored["conditions"]["split"]  # as written by earlier versions, which did not split
    assert Report.from_dict(stored).conditions == whole.conditions


def test_evaluate_warns_of_lines_longer_than_those_of_the_training_data(
    model: Path, tmp_path: Path, command: Command
) -> None:
    for name, line in (("long.en", "I love apples " + "and tea " * 30), ("long.zh", "我喜欢苹果")):
        (tmp_path / name).write_text(f"We want dogs\n{line}\n", encoding="utf-8")
    search = ("--beam", 1, "--search", "max_length=20")
    answer = command("evaluate", model, "--src", tmp_path / "long.en", "--ref", tmp_path / "long.zh", *search)
    assert answer.code == 0
    assert answer.err.startswith(f"regard: {model}: line 2: ")
    assert "but the longest training source has" in answer.err
