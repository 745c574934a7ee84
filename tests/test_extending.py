"""The tutorials of docs/extending run from top to bottom: train, save, load, probe and serve; and `regard new`."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

from regard.models.folder import load_model
from regard.registry import VARIABLE
from regard.serving.messages import LoadRequest
from regard.serving.model_runner import load_runner
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe
from tests.conftest import Command, settings_of
from tests.extensions import TUTORIALS, titled_files
from tests.extensions import extensions as extensions
from tests.forks import FORKS, Forked
from tests.images import paint
from tests.serving.server_process import TIMEOUT, ServerProcess
from tests.test_package import blocks, commands

PAGES = ("attention-kind", "model", "objective", "task")
SHORT = {"training.steps": 4, "training.validate_every": 4, "training.log_every": 2, "training.device": "cpu"}
SMALL_TRANSLATOR = {"width": 32, "heads": 2, "hidden": 32, "encoder_layers": 1, "decoder_layers": 1}
CHANGES: dict[str, dict[str, object]] = {
    "attention-kind": {"training.valid_sentences": 4}
    | {f"model.{key}": size for key, size in SMALL_TRANSLATOR.items()},
    "model": {"batch.images": 8},
    "objective": {"batch.images": 8},
    "task": {"batch.size": 8},
}
"""Settings with which the models of each page are trained within a second."""


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("short_builtin_corpus")
def test_tutorial_runs(page: str, extensions: Path, command: Command) -> None:
    paint(extensions / "images", 10, 1)
    for name, content in titled_files(page).items():
        Path(name).write_text(content, encoding="utf-8")
    names: dict[str, object] = {"__name__": page}
    text = (TUTORIALS / f"{page}.md").read_text("utf-8")
    for language, body in re.findall(r"^```(console|python)\n(.*?)^```", text, re.M | re.S):
        if language == "python":
            exec(compile(body, f"{page}.md", "exec"), names)
            continue
        for words in commands(body):
            if words[0] == "serve":
                serve(Path(words[1]))
                continue
            more = settings_of(SHORT | CHANGES[page]) if words[0] == "train" else []
            result = command(*words, *more)
            assert result.code == 0, result.err


def serve(run: Path) -> None:
    """Load a model as a worker of the server does, and run its operation."""
    runner = load_runner(LoadRequest(run.name, run, "cpu", None, {}, None, None))
    runner.warm_up()
    if "classify" in runner.info.operations:
        image = Path("images/red/000.png").read_bytes()
        ((ranking,),) = [runner.run("classify", [image], {})]
        assert {name for name, _ in ranking} == {"blue", "green", "red"}
        (packet,) = runner.run("image", [{"image": image, "pixels": 10**6, "patch": None}], {})
        assert b'"classes"' in packet
    else:
        ((translation,),) = runner.run("translate", ["I love apples"], {"alignments": True})
        assert translation.alignment is not None


@pytest.mark.parametrize("page", PAGES)
def test_extension_of_a_tutorial_has_less_than_60_lines(page: str) -> None:
    (source,) = [content for name, content in titled_files(page).items() if name.endswith(".py")]
    assert len(source.splitlines()) < 60


@pytest.mark.usefixtures("short_builtin_corpus")
def test_model_of_an_extension_is_served(
    extensions: Path, command: Command, fork: Callable[..., Forked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers import the extension, because they inherit REGARD_IMPORT."""
    for file, content in titled_files("attention-kind").items():
        Path(file).write_text(content, encoding="utf-8")
    more = settings_of(SHORT | CHANGES["attention-kind"])
    assert command("train", "cosine.yaml", "--import", "cosine.py", "--out", "run", *more).code == 0
    server = ServerProcess("run", "--import", "cosine.py")
    try:
        assert isinstance(server.wait_until_ready().translate("I love apples"), str)
    finally:
        server.stop()
    monkeypatch.delenv(VARIABLE)
    (_, message) = blocks((TUTORIALS / "index.md").read_text("utf-8"), "text")
    error = fork("translate", "run", "I love apples").communicate(TIMEOUT)[1]
    assert error == message.replace("runs/cosine/", "run/")


def test_resumed_run_of_an_own_task_has_bit_identical_weights(extensions: Path) -> None:
    for name, content in titled_files("task").items():
        Path(name).write_text(content, encoding="utf-8")
    __import__("sorting")
    changes = [f"{key}={value}" for key, value in (SHORT | CHANGES["task"]).items()]
    whole = load_recipe(Path("sorting.yaml"), changes)
    run_recipe(whole, Path("whole"))
    run_recipe(load_recipe(Path("sorting.yaml"), [*changes, "training.steps=2"]), Path("parts"))
    run_recipe(whole, Path("parts"))
    first, second = (load_model(Path(run, "last"))[0].state_dict() for run in ("whole", "parts"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    run_recipe(load_recipe(Path("sorting.yaml"), [*changes, "init.from=whole", "optim.lr=1e-12"]), Path("more"))
    start = load_model(Path("more/last"))[0].state_dict()
    assert all(torch.allclose(start[name], load_model(Path("whole/best"))[0].state_dict()[name]) for name in start)


# regard new


def test_new_project_passes_its_tests(extensions: Path, command: Command) -> None:
    result = command("new", "my-attention")
    assert result.code == 0
    files = {str(path.relative_to(extensions)) for path in extensions.rglob("*") if path.is_file()}
    assert files == set(result.out.splitlines()[:-1])
    (tree, _) = blocks((TUTORIALS / "index.md").read_text("utf-8"), "text")
    assert {line.split()[0] for line in tree.splitlines()[1:]} == {file.removeprefix("my-attention/") for file in files}
    process = FORKS.Process(target=run_pytest, args=(extensions / "my-attention", extensions / "report"), daemon=False)
    process.start()
    process.join(300)
    assert process.exitcode == 0, (extensions / "report").read_text()


def run_pytest(folder: Path, report: Path) -> None:
    """Run the tests in a folder. Target of a forked process."""
    os.chdir(folder)
    with report.open("w") as file, redirect_stdout(file):
        code = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={folder}"])
    sys.exit(int(code))


@pytest.mark.parametrize("name", ["My-Attention", "my_attention", "my attention", "../mine", "1st", ""])
def test_new_rejects_names_that_are_no_package(name: str, extensions: Path, command: Command) -> None:
    assert "use small letters, digits and hyphens, such as my-attention" in command("new", name).error
    assert not list(extensions.iterdir())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("class", "is a keyword of Python"),
        ("linear", "is the name of an attention kind"),
        ("full", "is the name of an attention kind"),
        ("torch", "is the name of an installed package"),
        ("regard", "is the name of an installed package"),
    ],
)
def test_new_rejects_names_that_would_hide_others(name: str, reason: str, extensions: Path, command: Command) -> None:
    assert reason in command("new", name).error
    assert not list(extensions.iterdir())


def test_new_replaces_nothing(extensions: Path, command: Command) -> None:
    (extensions / "mine").mkdir()
    assert command("new", "mine").error == "mine: already exists; choose another name or --out"
    assert command("new", "mine", "--out", "other").code == 0
    assert (extensions / "other" / "mine" / "__init__.py").is_file()
