"""The command line: help, training, translation and evaluation."""

import errno
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from regard import Translator, cli
from regard.cli import app
from tests.conftest import Command
from tests.forks import Forked

COMMANDS = tuple(typer.main.get_command(app).commands)
SCRIPT = Path(sys.executable).with_name("regard")
needs_script = pytest.mark.skipif(not SCRIPT.exists(), reason="regard is not installed")
SHORT = ("--set", "training.steps=20", "--set", "training.validate_every=20")


HEAVY = {"torch", "numpy", "tokenizers", "safetensors", "yaml", "rich", "sacrebleu", "PIL", "matplotlib"}


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["train", "--help"]], ids=" ".join)
def test_help_and_version_import_the_command_line_only(words: list[str]) -> None:
    """`regard --help` opens in a fraction of a second only if it imports no other package."""
    program = (
        "import sys\n"
        "from regard.cli import main\n"
        f"sys.argv = ['regard', *{words!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n    code = stop.code\n"
        f"heavy = {HEAVY} & sys.modules.keys()\n"
        "heavy |= {name for name in sys.modules if name.startswith('regard.') and not name.startswith(\n"
        "    ('regard.cli', 'regard.console', 'regard.threads', 'regard.errors', 'regard.files', 'regard.registry'))}\n"
        "sys.exit(f'{code} {heavy}' if heavy or code else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


@pytest.mark.parametrize("module", ["typer", "torch"])  # before the commands are known, and in a command
def test_ctrl_c_while_modules_are_imported_ends_silently(module: str, tmp_path: Path) -> None:
    # Like some real modules, this one catches every exception that is raised in it.
    (tmp_path / f"{module}.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    os.getpid()\n"
        "except BaseException:\n    print('caught')\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    words = [sys.executable, "-m", "regard", "train", "demo", "--out", "run"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not (tmp_path / "run").exists()


def test_installed_command_handles_ctrl_c_from_its_first_import() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"regard": "regard.__main__:main"}


def test_path_errors_are_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    error = OSError(errno.EROFS, "Read-only file system", "out.html")
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err == "regard: out.html: Read-only file system; give another path\n"
    error = OSError(errno.EIO, "Input/output error", "out.html")
    with pytest.raises(OSError, match="Input/output error"):
        cli.main()


def test_help_lists_every_command(command: Command) -> None:
    answer = command("--help")
    assert answer.code == 0
    assert all(f"\n  {name} " in answer.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, command: Command) -> None:
    answer = command(name, "--help")
    assert (answer.code, answer.err) == (0, "")
    assert f"regard {name} [OPTIONS]" in answer.out


def test_no_command_prints_the_help(command: Command) -> None:
    assert command().out == command("--help").out


def test_version_is_printed(command: Command) -> None:
    from importlib.metadata import version

    assert command("--version").out == f"regard {version('regard')}\n"


def test_train_and_translate_in_new_processes(
    toy: Path, tmp_path: Path, shell: Command, fork: Callable[..., Forked], small_settings: list[str]
) -> None:
    files = ("--src", toy / "train.en", "--tgt", toy / "train.zh")
    trained = shell("train", *files, "--out", "run", *small_settings, "--set", "training.steps=30")
    assert (trained.code, trained.err) == (0, "")
    assert "en → zh: 470 training pairs, 30 for validation" in trained.out
    assert "the best model" in trained.out
    assert "regard translate run" in trained.out

    sentences = ["I love apples", "We want tea and dogs"]
    translated = fork("translate", "run", *sentences)
    out, errors = translated.communicate(timeout=300)
    assert (translated.returncode, errors) == (0, "")
    assert out.split("\n") == [*Translator.load(tmp_path / "run")(sentences), ""]


@pytest.fixture
def own_run(trained_run: Path, tmp_path: Path) -> Path:
    """A writable copy of the trained run."""
    return shutil.copytree(trained_run, tmp_path / "own")


def test_evaluate_prints_scores_and_writes_translations(
    toy: Path, own_run: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "translations.zh"
    files = ("--src", toy / "train.en", "--ref", toy / "train.zh")
    answer = command("evaluate", own_run, *files, "--beam", 2, "--out", out)
    assert (answer.code, answer.err) == (0, "")
    assert "500 sentences, beam 2, length penalty average 1" in answer.out
    (bleu,) = re.findall(
        r"^BLEU +([\d.]+) .*nrefs:1\|case:mixed\|eff:no\|tok:zh\|smooth:exp\|version:", answer.out, re.M
    )
    assert float(bleu) > 90
    assert re.search(r"^chrF2 +[\d.]+ .*nc:6\|nw:0\|space:no\|version:", answer.out, re.M)
    assert len(out.read_text(encoding="utf-8").splitlines()) == 500


@pytest.mark.parametrize("kind", ["tsv", "jsonl.gz"])
def test_sources_and_references_may_be_in_one_file(
    kind: str, toy: Path, own_run: Path, tmp_path: Path, command: Command
) -> None:
    sides = [(toy / f"train.{language}").read_text(encoding="utf-8").splitlines()[:9] for language in ("en", "zh")]
    pairs = list(zip(*sides, strict=True))
    text = "".join(
        f"{source}\t{target}\n" if kind == "tsv" else json.dumps({"source": source, "target": target}) + "\n"
        for source, target in pairs
    ).encode("utf-8")
    path = tmp_path / f"test.en-zh.{kind}"
    path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    for name, side in zip(("a.en", "a.zh"), sides, strict=True):
        (tmp_path / name).write_text("\n".join(side) + "\n", encoding="utf-8")
    apart = command("evaluate", own_run, "--src", tmp_path / "a.en", "--ref", tmp_path / "a.zh")
    assert command("evaluate", own_run, "--src", path).out == apart.out
    assert "tok:zh" in command("evaluate", tmp_path / "a.zh", "--src", path).out  # from the language in the file name
    assert "omit the target file" in command("evaluate", own_run, "--src", path, "--ref", tmp_path / "a.zh").error
    assert "evaluate needs --ref" in command("evaluate", own_run, "--src", tmp_path / "a.en").error


def test_tokenisation_case_and_length_penalty_can_be_chosen(
    toy: Path, own_run: Path, tmp_path: Path, command: Command
) -> None:
    for name in ("train.en", "train.zh"):
        lines = (toy / name).read_text(encoding="utf-8").splitlines()[:5]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    files = ("--src", tmp_path / "train.en", "--ref", tmp_path / "train.zh")
    answer = command("evaluate", own_run, *files, "--tokenize", "none", "--lowercase", "--length-penalty", "wu")
    assert "length penalty wu" in answer.out
    assert "case:lc|eff:no|tok:none" in answer.out


@pytest.mark.parametrize("kind", ["gz", "tsv", "tsv.gz", "jsonl"])
def test_training_reads_every_file_format(
    kind: str, toy: Path, tmp_path: Path, command: Command, small_settings: list[str]
) -> None:
    english, chinese = ((toy / name).read_text(encoding="utf-8").splitlines() for name in ("train.en", "train.zh"))
    pairs = list(zip(english, chinese, strict=True))
    if kind == "gz":
        for name in ("train.en", "train.zh"):
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress((toy / name).read_bytes()))
        files = ("--src", tmp_path / "train.en.gz", "--tgt", tmp_path / "train.zh.gz")
    else:
        text = "".join(
            f"{source}\t{target}\n" if "tsv" in kind else json.dumps({"source": source, "target": target}) + "\n"
            for source, target in pairs
        ).encode("utf-8")
        (tmp_path / f"train.{kind}").write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
        files = ("--src", tmp_path / f"train.{kind}")
    answer = command("train", *files, "--out", tmp_path / "run", *small_settings, *SHORT)
    assert (answer.code, answer.err) == (0, "")
    assert "470 training pairs, 30 for validation" in answer.out
    assert Translator.load(tmp_path / "run").languages == (("en", "zh") if kind == "gz" else ("source", "zh"))


def test_given_validation_files_are_used(
    toy: Path, tmp_path: Path, command: Command, small_settings: list[str]
) -> None:
    files = ("--src", toy / "train.en", "--tgt", toy / "train.zh")
    valid = ("--valid-src", toy / "train.en", "--valid-tgt", toy / "train.zh")
    answer = command("train", *files, *valid, "--out", tmp_path / "run", *small_settings, *SHORT)
    assert "500 training pairs, 500 for validation" in answer.out


def test_files_replace_the_corpus_of_a_recipe(
    toy: Path, tmp_path: Path, command: Command, small_settings: list[str]
) -> None:
    files = ("--src", toy / "train.en", "--tgt", toy / "train.zh")
    answer = command("train", "demo", *files, "--out", tmp_path / "run", *small_settings, *SHORT)
    assert (answer.code, answer.err) == (0, "")
    assert "470 training pairs" in answer.out


def test_lines_of_standard_input_keep_their_order_and_blank_lines(trained_run: Path, command: Command) -> None:
    answer = command("translate", trained_run, stdin=b"\nI love apples\r\n\n\nYou buy tea\n")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.split("\n") == ["", "我喜欢苹果", "", "", "你买茶", ""]


def test_empty_input_gives_empty_output(trained_run: Path, command: Command) -> None:
    answer = command("translate", trained_run, stdin=b"")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


def test_search_options_are_passed_on(trained_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    received = []
    hypotheses = Translator.hypotheses

    def record(self: Translator, texts: list[str], settings: object = None, **options: object) -> object:
        received.append(settings)
        return hypotheses(self, texts, settings, **options)

    monkeypatch.setattr(Translator, "hypotheses", record)
    command("translate", trained_run, "I love apples", "--beam", 3, "--length-penalty", "wu", "--alpha", 0.6)
    assert (received[0].beam, received[0].length_penalty, received[0].alpha) == (3, "wu", 0.6)


@needs_script
def test_console_script_runs() -> None:
    done = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True, env=os.environ, timeout=300)
    assert done.stdout.startswith("regard ")


def test_evaluate_does_not_overwrite_its_input(toy: Path, own_run: Path, tmp_path: Path, command: Command) -> None:
    reference = tmp_path / "reference.zh"
    reference.write_bytes((toy / "train.zh").read_bytes())
    answer = command("evaluate", own_run, "--src", toy / "train.en", "--ref", reference, "--out", reference)
    assert answer.code == 2
    assert "would overwrite an input file" in answer.err
    assert reference.read_bytes() == (toy / "train.zh").read_bytes()


@needs_script
def test_shell_completion_lists_commands() -> None:
    environment = {**os.environ, "_REGARD_COMPLETE": "complete_bash", "COMP_WORDS": "regard tra", "COMP_CWORD": "1"}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.split()) == (0, ["train", "translate"])
