"""Training of translators with each kind of attention."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.builtin.corpus import load_pairs
from regard.data.text.readers import Pair
from regard.pipelines.translator import Translator
from regard.training.run import run_recipe
from tests.conftest import small_recipe

KINDS: dict[str, Any] = {
    "local": {"kind": "local", "window": 4},
    "linear": "linear",
    "linear random": {"kind": "linear", "features": "random"},
    "linear plain": {"kind": "linear", "features": "plain"},
    "routing": {"kind": "routing", "clusters": 4},
}


@pytest.fixture(scope="module")
def builtin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of the built-in corpus as files."""
    folder = tmp_path_factory.mktemp("builtin")
    pairs: list[Pair] = load_pairs("train", 600)
    (folder / "train.en").write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
    (folder / "train.zh").write_text("".join(f"{pair.target}\n" for pair in pairs), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("attention", "layout"),
    [
        *(pytest.param(settings, "padded", id=name) for name, settings in KINDS.items()),
        *(pytest.param(KINDS[name], "packed", id=f"{name} packed") for name in ("local", "linear", "routing")),
    ],
)
def test_loss_decreases_with_each_kind(attention: Any, layout: str, builtin: Path, tmp_path: Path) -> None:
    steps = {"training__steps": 40, "training__validate_every": 40, "training__log_every": 10}
    recipe = small_recipe(
        builtin / "train.en",
        builtin / "train.zh",
        **steps,
        training__valid_sentences=2,
        tokenizer__size=600,
        batch__layout=layout,
        model__attention=attention,
    )
    run_recipe(recipe, tmp_path / "run")
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert losses[-1] < losses[0] - 0.5
    translator = Translator.load(tmp_path / "run")
    assert translator.model.config.attention.kind == (attention if isinstance(attention, str) else attention["kind"])
    sentences = [pair.source for pair in load_pairs("test", 5)]
    hypotheses = [best[0] for best in translator.hypotheses(sentences)]
    rescored = translator.score_tokens(
        translator.vocabularies.source.encode_batch(sentences), [one.tokens for one in hypotheses]
    )
    for one, other in zip(hypotheses, rescored, strict=True):
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-3)


def test_routing_state_is_saved_in_the_model_folder(builtin: Path, tmp_path: Path) -> None:
    steps = {"training__steps": 5, "training__validate_every": 5}
    changes: dict[str, Any] = {"model__attention": "routing", "tokenizer__size": 600}
    run_recipe(small_recipe(builtin / "train.en", builtin / "train.zh", **steps, **changes), tmp_path / "run")
    model = Translator.load(tmp_path / "run").model
    biases = [tensor for name, tensor in model.state_dict().items() if name.endswith("balance_bias")]
    assert len(biases) == 4
    assert all((bias != 0).any() for bias in biases)
    assert all(torch.isfinite(bias).all() for bias in biases)


def test_resumed_routing_has_bit_identical_centroids(builtin: Path, tmp_path: Path) -> None:
    def run(steps: int, out: Path) -> dict[str, torch.Tensor]:
        recipe = small_recipe(
            builtin / "train.en",
            builtin / "train.zh",
            training__steps=steps,
            training__validate_every=100,
            training__valid_sentences=0,
            optim__schedule="constant",
            tokenizer__size=600,
            model__attention="routing",
        )
        run_recipe(recipe, out)
        return Translator.load(out / "last").model.state_dict()

    run(3, tmp_path / "resumed")
    resumed, expected = run(6, tmp_path / "resumed"), run(6, tmp_path / "uninterrupted")
    assert any(name.endswith("centroids") for name in expected)
    for name, tensor in expected.items():
        assert torch.equal(resumed[name], tensor), name
