import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from regard import Transformer, TransformerConfig, Translator
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.state import TrainingState

Command = Callable[..., "CommandResult"]  # noqa: F821  the fixture of tests/conftest.py
SHORT = {
    "training__steps": 6,
    "training__validate_every": 6,
    "training__valid_sentences": 0,
    "training__checkpoint_every": 2,
    "training__keep_checkpoints": 3,
}


@pytest.fixture
def train(make_recipe: Callable[..., Recipe], tmp_path: Path) -> Callable[..., Path]:
    """Train for six steps with checkpoints at steps 2, 4 and 6."""

    def make(name: str, **changes: object) -> Path:
        run_recipe(make_recipe(**SHORT | changes), tmp_path / name)
        return tmp_path / name

    return make


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def assert_mean(folder: Path, parts: list[dict[str, torch.Tensor]]) -> None:
    for name, mean in weights(folder).items():
        assert torch.allclose(mean, torch.stack([part[name] for part in parts]).mean(0), atol=1e-7), name
        assert mean.dtype == torch.float32


def test_average_of_several_models_is_the_mean_of_their_weights(
    train: Callable[..., Path], tmp_path: Path, command: Command
) -> None:
    runs = [train(f"run{seed}", training__seed=seed, data__hold_out=30) for seed in (1, 2, 3)]
    for run in runs[1:]:  # another seed holds out other sentences and so trains another tokenizer
        shutil.copy(runs[0] / "best" / "tokenizer.json", run / "best")
    answer = command("average", *runs, "--out", tmp_path / "mean")
    assert answer.code == 0, answer.err
    assert answer.out.count("averaged ") == 3
    assert f"regard translate {tmp_path / 'mean'} < FILE" in answer.out
    assert_mean(tmp_path / "mean", [weights(run / "best") for run in runs])
    assert Translator.load(tmp_path / "mean").languages == ("en", "zh")
    assert sorted(path.name for path in (tmp_path / "mean").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_average_of_one_run_is_the_mean_of_its_checkpoints(
    train: Callable[..., Path], tmp_path: Path, command: Command
) -> None:
    run = train("run")
    assert command("average", run, "--out", tmp_path / "mean").out.count("averaged ") == 3
    states = [
        safetensors.torch.load_file(run / "checkpoints" / f"step-0000000{step}" / "state.safetensors")
        for step in (2, 4, 6)
    ]
    models = [{name.removeprefix("model."): tensor for name, tensor in state.items()} for state in states]
    assert_mean(tmp_path / "mean", models)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer__size": 330}, "its tokenizer differs from that of"),
        ({"model__heads": 4}, "its config.json differs from that of"),
    ],
)
def test_models_with_another_tokenizer_or_config_are_rejected(
    changes: dict[str, object], message: str, train: Callable[..., Path], tmp_path: Path, command: Command
) -> None:
    one, other = train("one"), train("other", **changes)
    refusal = command("average", one, other, "--out", tmp_path / "mean").error
    assert refusal.startswith(f"{other}/best: {message} {one}/best")
    assert not (tmp_path / "mean").exists()


def test_single_model_is_rejected(train: Callable[..., Path], tmp_path: Path, command: Command) -> None:
    run = train("run", training__keep_checkpoints=1)
    for words in ([run], [run / "best"]):
        refusal = command("average", *words, "--out", tmp_path / "mean").error
        assert "cannot be averaged" in refusal or "fewer than two checkpoints to average" in refusal
    assert not (tmp_path / "mean").exists()


def test_damaged_checkpoint_is_named(train: Callable[..., Path], tmp_path: Path, command: Command) -> None:
    run = train("run")
    (run / "checkpoints" / "step-00000004" / "state.safetensors").write_bytes(b"")
    assert "step-00000004: damaged" in command("average", run, "--out", tmp_path / "mean").error
    assert not (tmp_path / "mean").exists()


def test_existing_output_folder_is_not_overwritten(train: Callable[..., Path], command: Command) -> None:
    run = train("run")
    assert "already exists" in command("average", run, run, "--out", run).error
    assert (run / "recipe.yaml").exists()


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_average_follows_a_growing_position_table(ema: float) -> None:
    model = Transformer(TransformerConfig.tiny(vocab=20))
    state = TrainingState(model, torch.optim.AdamW(model.parameters(), fused=True), ema=ema)
    state.update_average()
    long = torch.randint(4, 20, (1, 300))
    expected = model.eval()(long, long)
    state.update_average()
    assert state.average is not None
    torch.testing.assert_close(state.average.module.eval()(long, long), expected)
