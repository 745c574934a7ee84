import re
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.training.recipe import Recipe, builtin_recipes
from regard.training.tasks.translation.recipe import DataSettings

BUILTIN = {"data.builtin": "en-zh"}


@pytest.mark.parametrize("name", builtin_recipes())
def test_every_built_in_recipe_is_valid_by_name_and_by_file_name(name: str) -> None:
    recipe = Recipe.load(Path(name))
    assert Recipe.load(Path(f"{name}.yaml")) == recipe
    recipe.check_model()


def test_the_demo_is_among_the_built_in_recipes() -> None:
    assert {"demo", "multi30k-en-de"} <= set(builtin_recipes())
    assert Recipe.load(Path("demo")).data.builtin == "en-zh"


def test_a_folder_of_a_recipes_name_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert Recipe.load(Path("demo")).data.builtin == "en-zh"


def test_a_file_of_a_recipes_name_comes_before_the_built_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.yaml").write_text("data: {builtin: en-zh}\ntraining: {steps: 7}\n")
    assert Recipe.load(Path("demo.yaml")).training.steps == 7


def test_the_recipe_kept_in_a_run_is_the_recipe_of_the_run(trained_run: Path, toy: Path) -> None:
    kept = Recipe.load(trained_run / "recipe.yaml")
    assert kept.training.steps == 300
    assert kept.data.source == toy / "train.en"
    assert kept.model["width"] == 32
    assert kept.search.beam == 1


@pytest.mark.parametrize("name", builtin_recipes())
def test_a_recipe_survives_being_written_and_read(name: str, tmp_path: Path) -> None:
    import yaml

    recipe = Recipe.load(Path(name), ["training.seed=7", "optim.clip=null"])
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
    assert Recipe.load(path) == recipe


@pytest.mark.parametrize(
    ("text", "value"), [("3e-4", 3e-4), ("3.0e-4", 3e-4), ("1E-2", 0.01), (".5", 0.5), ("2", 2.0), ("+1e1", 10.0)]
)
def test_numbers_mean_what_they_look_like(text: str, value: float) -> None:
    assert Recipe.load(None, [f"optim.lr={text}"], BUILTIN).optim.lr == value


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "inf", "nan"])
@pytest.mark.parametrize("key", ["optim.lr", "optim.skip_above", "optim.betas.1", "objective.r_drop", "model.dropout"])
def test_what_is_no_finite_number_is_refused(key: str, value: str) -> None:
    change = f"optim.betas=[0.9, {value}]" if "betas" in key else f"{key}={value}"
    with pytest.raises(UserError) as refused:
        Recipe.load(None, [change], BUILTIN)
    sentence = str(refused.value).removeprefix("settings: ").replace("model: ", "model.")
    assert re.fullmatch(f"{key}: input should be a finite number, found '?-?(inf|nan)'?", sentence)


@pytest.mark.parametrize("value", ["0.5", "[0.5]", "[0.5, 0.3, 0.1]", "much"])
def test_where_several_numbers_are_meant_the_mistake_says_how_many(value: str) -> None:
    two = "objective.glancing_ratio: input should be two numbers, such as [0.5, 0.3], found "
    with pytest.raises(UserError, match=re.escape(two)):
        Recipe.load(None, ["model.kind=nat", f"objective.glancing_ratio={value}"], BUILTIN)
    with pytest.raises(UserError, match=r"optim.betas: input should be two numbers, such as \[0.9, 0.98\], found "):
        Recipe.load(None, [f"optim.betas={value}"], BUILTIN)


def test_where_several_words_are_meant_the_mistake_speaks_of_no_numbers() -> None:
    with pytest.raises(UserError, match=r"data.languages: input should be two words, found 'en'"):
        Recipe.load(None, ["data.languages=en"], BUILTIN)
    with pytest.raises(UserError, match=r"data.keys: input should be two words, such as \['source', 'target'\], found"):
        Recipe.load(None, ["data.keys=[source]"], BUILTIN)


def test_where_any_number_of_values_is_meant_the_mistake_says_a_list() -> None:
    guide = ["objective.guided_attention.steps=5", "objective.guided_attention.layers=3"]
    with pytest.raises(UserError, match=r"objective.guided_attention.layers: input should be a list, found 3"):
        Recipe.load(None, guide, BUILTIN)


def test_so_many_workers_are_a_typing_error() -> None:
    with pytest.raises(UserError, match=r"training.workers: input should be less than or equal to 64, found 1000000"):
        Recipe.load(None, ["training.workers=1000000"], BUILTIN)


def test_changes_lie_over_given_values_and_those_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("data: {builtin: en-zh}\ntraining: {steps: 1, seed: 1}\nbatch: {tokens: 1}\n")
    recipe = Recipe.load(path, ["training.seed=3"], {"training.seed": 2, "batch.tokens": 2})
    assert (recipe.training.steps, recipe.batch.tokens, recipe.training.seed) == (1, 2, 3)


def test_the_last_of_two_changes_wins() -> None:
    assert Recipe.load(None, ["optim.lr=1", "optim.lr=2"], BUILTIN).optim.lr == 2


def test_a_change_may_hold_an_equals_sign_and_spaces() -> None:
    recipe = Recipe.load(None, ["data.source=a=b .en", "data.target=c.de"])
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
def test_languages_are_read_off_the_files_names(source: str, target: str | None, pair: tuple[str, str]) -> None:
    assert DataSettings.parse({"source": source, "target": target}, "data").language_pair() == pair


def test_given_languages_come_before_guesses() -> None:
    data = DataSettings.parse({"source": "a.en", "target": "a.de", "languages": ["fr", ""]}, "data")
    assert data.language_pair() == ("fr", "de")


def test_the_built_in_corpus_knows_its_languages() -> None:
    assert DataSettings(builtin="en-zh").language_pair() == ("en", "zh")


def test_exactly_one_corpus_must_be_named() -> None:
    for values in ({}, {"source": "a.tsv", "builtin": "en-zh"}):
        with pytest.raises(UserError, match="give either source"):
            DataSettings.parse(values, "data")


def test_the_models_keys_change_its_preset() -> None:
    config = Recipe.load(None, ["model.preset=base", "model.width=64"], BUILTIN).model_config_for(10, 10)
    assert (config.width, config.hidden, config.tie) == (64, 2048, "all")


def test_separate_vocabularies_share_no_embedding_between_the_sides() -> None:
    config = Recipe.load(None, ["tokenizer.joint=false"], BUILTIN).model_config_for(10, 12)
    assert (config.source_vocab, config.target_vocab, config.tie) == (10, 12, "target")
