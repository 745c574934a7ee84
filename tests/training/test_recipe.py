"""Recipes: built-in files, changes, values and languages."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.training.recipe import TrainingSettings, builtin_recipes
from regard.training.tasks.registry import load_recipe
from regard.training.tasks.translation.recipe import DataSettings
from tests.extensions import extensions, titled_files  # noqa: F401

BUILTIN = {"data.builtin": "en-zh"}


@pytest.mark.parametrize("name", builtin_recipes())
def test_builtin_recipe_is_valid_by_name_and_file_name(name: str) -> None:
    recipe = load_recipe(Path(name))
    assert load_recipe(Path(f"{name}.yaml")) == recipe
    recipe.check_model()


def test_builtin_recipes_include_the_demo() -> None:
    assert {"demo", "multi30k-en-de"} <= set(builtin_recipes())
    assert load_recipe(Path("demo")).data.builtin == "en-zh"


def test_folder_does_not_hide_a_builtin_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert load_recipe(Path("demo")).data.builtin == "en-zh"


def test_file_takes_precedence_over_a_builtin_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.yaml").write_text("data: {builtin: en-zh}\ntraining: {steps: 7}\n")
    assert load_recipe(Path("demo.yaml")).training.steps == 7


def test_run_folder_contains_its_recipe(trained_run: Path, toy: Path) -> None:
    stored = load_recipe(trained_run / "recipe.yaml")
    assert stored.training.steps == 450
    assert stored.data.source == toy / "train.en"
    assert stored.model["width"] == 32
    assert stored.search.beam == 1


@pytest.mark.parametrize("name", builtin_recipes())
def test_recipe_can_be_written_and_read(name: str, tmp_path: Path) -> None:
    import yaml

    recipe = load_recipe(Path(name), ["training.seed=7", "optim.clip=null"])
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    ("text", "value"), [("3e-4", 3e-4), ("3.0e-4", 3e-4), ("1E-2", 0.01), (".5", 0.5), ("2", 2.0), ("+1e1", 10.0)]
)
def test_numbers_in_scientific_notation_are_parsed(text: str, value: float) -> None:
    assert load_recipe(None, [f"optim.lr={text}"], BUILTIN).optim.lr == value


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "inf", "nan"])
@pytest.mark.parametrize("key", ["optim.lr", "optim.skip_above", "optim.betas.1", "objective.r_drop", "model.dropout"])
def test_values_that_are_not_finite_are_rejected(key: str, value: str) -> None:
    change = f"optim.betas=[0.9, {value}]" if "betas" in key else f"{key}={value}"
    with pytest.raises(UserError) as error:
        load_recipe(None, [change], BUILTIN)
    message = str(error.value).removeprefix("settings: ").replace("model: ", "model.")
    assert re.fullmatch(f"{key}: input should be a finite number, found '?-?(inf|nan)'?", message)


@pytest.mark.parametrize("value", ["0.5", "[0.5]", "[0.5, 0.3, 0.1]", "much"])
def test_errors_about_tuples_of_numbers_name_their_length(value: str) -> None:
    two = "objective.glancing_ratio: input should be two numbers, such as [0.5, 0.3], found "
    with pytest.raises(UserError, match=re.escape(two)):
        load_recipe(None, ["model.kind=nat", f"objective.glancing_ratio={value}"], BUILTIN)
    with pytest.raises(UserError, match=r"optim.betas: input should be two numbers, such as \[0.9, 0.98\], found "):
        load_recipe(None, [f"optim.betas={value}"], BUILTIN)


def test_errors_about_tuples_of_words_name_their_length() -> None:
    with pytest.raises(UserError, match=r"data.languages: input should be two words, found 'en'"):
        load_recipe(None, ["data.languages=en"], BUILTIN)
    with pytest.raises(UserError, match=r"data.keys: input should be two words, such as \['source', 'target'\], found"):
        load_recipe(None, ["data.keys=[source]"], BUILTIN)


def test_errors_about_lists_name_the_type() -> None:
    guide = ["objective.guided_attention.steps=5", "objective.guided_attention.layers=3"]
    with pytest.raises(UserError, match=r"objective.guided_attention.layers: input should be a list, found 3"):
        load_recipe(None, guide, BUILTIN)


def test_number_of_workers_is_limited() -> None:
    with pytest.raises(UserError, match=r"training.workers: input should be less than or equal to 64, found 1000000"):
        load_recipe(None, ["training.workers=1000000"], BUILTIN)


def test_changes_override_given_values_which_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("data: {builtin: en-zh}\ntraining: {steps: 1, seed: 1}\nbatch: {tokens: 1}\n")
    recipe = load_recipe(path, ["training.seed=3"], {"training.seed": 2, "batch.tokens": 2})
    assert (recipe.training.steps, recipe.batch.tokens, recipe.training.seed) == (1, 2, 3)


def test_last_of_two_changes_wins() -> None:
    assert load_recipe(None, ["optim.lr=1", "optim.lr=2"], BUILTIN).optim.lr == 2


def test_changes_may_contain_equals_signs_and_spaces() -> None:
    recipe = load_recipe(None, ["data.source=a=b .en", "data.target=c.de"])
    assert recipe.data.source == Path("a=b .en")


@pytest.mark.parametrize(
    ("source", "target", "pair"),
    [
        ("train.en", "train.de", ("en", "de")),
        ("a.b.en.gz", "a.b.zh-CN.xz", ("en", "zh-CN")),
        ("train.lc.norm.tok.en", "train.lc.norm.tok.de.txt", ("en", "de")),
        ("source.txt", "target.txt", ("source", "target")),
        ("english", "german", ("source", "target")),
        ("corpus.en-zh.tsv", None, ("en", "zh")),
        ("corpus.pt-BR.jsonl.gz", None, ("pt-BR", "target")),
        ("corpus.tsv", None, ("source", "target")),
    ],
)
def test_languages_are_taken_from_file_names(source: str, target: str | None, pair: tuple[str, str]) -> None:
    assert DataSettings.parse({"source": source, "target": target}, "data").language_pair() == pair


def test_given_languages_take_precedence() -> None:
    data = DataSettings.parse({"source": "a.en", "target": "a.de", "languages": ["fr", ""]}, "data")
    assert data.language_pair() == ("fr", "de")


def test_languages_of_the_builtin_corpus() -> None:
    assert DataSettings(builtin="en-zh").language_pair() == ("en", "zh")


def test_exactly_one_corpus_must_be_given() -> None:
    for values in ({}, {"source": "a.tsv", "builtin": "en-zh"}):
        with pytest.raises(UserError, match="give either source"):
            DataSettings.parse(values, "data")


def test_model_keys_override_the_preset() -> None:
    config = load_recipe(None, ["model.preset=base", "model.width=64"], BUILTIN).model_settings(10, 10)
    assert (config.width, config.hidden, config.tie) == (64, 2048, "all")


def test_separate_vocabularies_do_not_share_embeddings() -> None:
    config = load_recipe(None, ["tokenizer.joint=false"], BUILTIN).model_settings(10, 12)
    assert (config.source_vocab, config.target_vocab, config.tie) == (10, 12, "target")


@pytest.mark.parametrize(
    ("compile_model", "cuda_graph", "captured", "fixed"),
    [
        (False, "auto", False, False),
        (True, "auto", True, True),
        (True, False, False, True),
        (False, True, True, True),
        (False, False, False, False),
    ],
)
def test_compiled_or_captured_steps_need_fixed_shapes(
    compile_model: bool, cuda_graph: Any, captured: bool, fixed: bool
) -> None:
    training = TrainingSettings(compile=compile_model, cuda_graph=cuda_graph)
    assert (training.uses_cuda_graph, training.fixed_shapes) == (captured, fixed)


@pytest.mark.parametrize(
    ("step", "stale", "over"), [(9, 0, False), (10, 0, True), (11, 0, True), (5, 2, False), (5, 3, True), (5, 4, True)]
)
def test_run_is_over_after_its_last_step_or_without_improvement(step: int, stale: int, over: bool) -> None:
    assert TrainingSettings(steps=10, patience=3).is_over(step, stale) == over
    assert TrainingSettings(steps=10).is_over(step, stale) == (step >= 10)


# What a recipe leaves to the machine

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def on_a_gpu(*settings: str) -> Any:
    return load_recipe(None, list(settings), BUILTIN).resolve(GPU)


def test_translators_use_the_fastest_settings_on_a_gpu() -> None:
    recipe = on_a_gpu()
    assert (recipe.training.cuda_graph, recipe.training.residual_dtype) == (True, "bfloat16")
    assert recipe.batch.layout == "packed"
    assert recipe.describe_execution(GPU) == (
        "bfloat16, bfloat16 residual stream, packed batches, steps captured in a CUDA graph"
    )


def test_a_cpu_gets_plain_steps() -> None:
    recipe = load_recipe(None, [], BUILTIN).resolve(CPU)
    assert (recipe.training.cuda_graph, recipe.training.residual_dtype) == (False, "float32")
    assert recipe.batch.layout == "padded"


def test_given_settings_are_kept() -> None:
    given = ("training.cuda_graph=false", "training.residual_dtype=float32", "batch.layout=packed")
    recipe = on_a_gpu(*given)
    assert recipe == load_recipe(None, list(given), BUILTIN)
    assert recipe.describe_execution(GPU).endswith("not captured in a CUDA graph (training.cuda_graph=false)")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["model.attention={kind: local, window: 4}"], "needs full attention, not local"),
        (["batch.layout=padded"], "batch.layout=padded"),
        (["model.kind=nat", "model.length=end", "model.positions=learned", "model.max_length=64"], "model.max_length="),
    ],
)
def test_steps_that_cannot_be_captured_run_eagerly_with_the_reason(settings: list[str], reason: str) -> None:
    recipe = on_a_gpu(*settings)
    assert recipe.training.cuda_graph is False
    assert f"steps not captured in a CUDA graph ({reason}" in recipe.describe_execution(GPU)


def test_steps_of_a_sharded_model_run_eagerly() -> None:
    recipe = on_a_gpu("training.sharding=fsdp")
    assert recipe.training.cuda_graph is False
    assert recipe.batch.layout == "packed"
    assert recipe.describe_execution(GPU).endswith("not captured in a CUDA graph (training.sharding=fsdp)")


def test_residual_stream_is_float32_where_bfloat16_has_no_use() -> None:
    assert on_a_gpu("training.precision=float32").training.residual_dtype == "float32"
    assert on_a_gpu("model.preset=tiny").training.residual_dtype == "float32"  # its norm is "pre"
    assert on_a_gpu("model.kind=nat").training.residual_dtype == "float32"
    assert on_a_gpu("model.kind=nat").training.cuda_graph is True


def test_image_models_are_captured_by_default() -> None:
    for name in ("mnist", "cifar10-swin", "croco-scenes"):
        assert load_recipe(Path(name)).resolve(GPU).training.cuda_graph is True
    local = load_recipe(Path("mnist"), ["model.attention={kind: linear}"]).resolve(GPU)
    assert local.training.cuda_graph is False
    assert local.describe_execution(GPU) == "bfloat16, steps not captured in a CUDA graph (linear attention)"


def test_extensions_are_captured_only_on_demand(extensions: Path) -> None:  # noqa: F811
    from regard.registry import import_extensions

    (extensions / "focal.py").write_text(titled_files("objective")["focal.py"], encoding="utf-8")
    import_extensions([str(extensions / "focal.py")])
    settings = ["objective.kind=focal", "data.images=images"]
    recipe = load_recipe(Path("mnist"), settings).resolve(GPU)
    assert recipe.training.cuda_graph is False
    assert "extensions may synchronise" in recipe.describe_execution(GPU)
    assert load_recipe(Path("mnist"), [*settings, "training.cuda_graph=true"]).resolve(GPU).training.uses_cuda_graph


def test_resumed_run_keeps_what_was_chosen_when_it_began() -> None:
    began = on_a_gpu()
    resumed = load_recipe(None, [], BUILTIN).keep_machine_settings(began)
    assert (resumed.training.cuda_graph, resumed.training.residual_dtype) == (True, "bfloat16")
    image = load_recipe(Path("mnist")).keep_machine_settings(load_recipe(Path("mnist")).resolve(GPU))
    assert image.training.cuda_graph is True
    other = load_recipe(None, ["training.cuda_graph=false"], BUILTIN).keep_machine_settings(began)
    assert other.training.cuda_graph is False
