"""Registration by name, imports of extensions, and what model folders state about them."""

import json
import os
from pathlib import Path
from typing import ClassVar, Literal

import pytest
import yaml

import regard
from regard import registry
from regard.attention.kinds import KINDS
from regard.errors import UserError
from regard.models.card import build_card
from regard.models.folder import CONFIG, MODELS, load_model, save_model
from regard.registry import import_extensions, register
from regard.training.objectives.nat import NATObjectiveSettings
from regard.training.objectives.registry import OBJECTIVES
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.tasks.classification.recipe import CrossEntropySettings
from regard.training.tasks.registry import TASKS, load_recipe
from tests.conftest import Command
from tests.extensions import extensions as extensions
from tests.extensions import titled_files
from tests.images import image_recipe

KIND = """
from typing import Literal
import regard
from regard.attention.kinds import Full

@regard.register
class Settings(regard.KindSettings):
    kind: Literal["own"] = "own"
    size: int = 3

    def build(self, heads, width, scale=None):
        return Full(scale)
"""
SMALL = {"width": 16, "heads": 2, "hidden": 16, "encoder_layers": 1, "decoder_layers": 1}


def own_model() -> regard.Transformer:
    return regard.Transformer(regard.TransformerConfig.base(20, **SMALL, attention={"kind": "own", "size": 5}))


def forget_extensions() -> None:
    """Remove what a test has registered, as in a new process."""
    for one in registry._REGISTRIES.values():
        for name in [name for name, cls in one.items() if registry._origin(cls) is not None]:
            del one[name]
    registry._FILES.clear()
    registry._import_installed.cache_clear()
    os.environ.pop(registry.VARIABLE, None)


def test_built_in_classes_are_registered() -> None:
    assert sorted(KINDS) == ["full", "linear", "local", "routing"]
    assert list(MODELS) == ["transformer", "nat", "vit", "swin", "croco", "bert"]
    assert list(TASKS) == ["translation", "nat", "classification", "croco"]
    assert set(OBJECTIVES) == {"teacher-forcing", "masked-tokens", "cross-entropy"}
    assert {objective.task for objective in OBJECTIVES.values()} <= set(TASKS)


# Imports


def test_file_of_an_extension_is_imported_once(extensions: Path) -> None:
    Path("own.py").write_text(KIND + "\nprint('imported')\n")
    import_extensions(["own.py", "own.py"])
    assert KINDS["own"].__name__ == "Settings"
    assert os.environ[registry.VARIABLE] == str(extensions / "own.py")


def test_same_file_may_be_imported_as_a_module_too(extensions: Path) -> None:
    Path("own.py").write_text(KIND)
    import_extensions(["own.py"])
    first = KINDS["own"]
    import_extensions(["own"])
    assert KINDS["own"] is not first


def test_environment_variable_names_extensions(extensions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own.py").write_text(KIND)
    monkeypatch.setenv(registry.VARIABLE, f"{extensions / 'own.py'}{os.pathsep}")
    assert "own" not in list(KINDS)
    assert "own" in KINDS  # an unknown name imports them


def test_installed_package_is_imported_when_its_name_is_used(extensions: Path) -> None:
    Path("own_package").mkdir()
    Path("own_package/__init__.py").write_text(KIND)
    Path("own_package-1.dist-info").mkdir()
    Path("own_package-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: own-package\nVersion: 1\n")
    Path("own_package-1.dist-info/entry_points.txt").write_text("[regard.extensions]\nown = own_package\n")
    assert own_model().config.attention.kind == "own"
    Path("model").mkdir()
    save_model(Path("model"), own_model(), {})
    stated = json.loads(Path("model", CONFIG).read_text())["extensions"]
    assert stated == {"attention kind": {"own": "own_package"}}
    forget_extensions()
    Path("own_package-1.dist-info/entry_points.txt").unlink()
    with pytest.raises(UserError, match="needs the attention kind own of own_package; install it, or import it before"):
        load_model(Path("model"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def f(:\n", r"own\.py, line 1: invalid syntax"),
        ("x = 1\ny = z\n", r"own\.py, line 2: NameError\(\"name 'z' is not defined\"\)"),
        ("import regard\n\nregard.register(int)\n", r"own\.py, line 3: int: only subclasses of KindSettings, Model"),
        ("import no_such_module\n", r"own\.py, line 1: ModuleNotFoundError"),
        (
            KIND.replace('Literal["own"] = "own"', "str"),
            r"own\.py, line 6: Settings: lacks its name; declare kind: Lit",
        ),
        (KIND.replace('"own"', '"local"'), r"own\.py, line 6: Settings: regard already has the attention kind local"),
    ],
)
def test_error_in_an_extension_is_one_sentence(content: str, message: str, extensions: Path, command: Command) -> None:
    Path("own.py").write_text(content)
    with pytest.raises(UserError, match=message):
        import_extensions(["own.py"])
    assert registry.VARIABLE not in os.environ
    assert sorted(KINDS) == ["full", "linear", "local", "routing"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.py", "none.py: no such file"),
        ("no_such_package", "--import no_such_package: no such module; give a file that ends in .py, or an installed"),
    ],
)
def test_missing_extension_is_reported(name: str, message: str, extensions: Path, command: Command) -> None:
    assert message in command("translate", "runs/x", "--import", name, "I love apples").error


def test_name_of_another_extension_is_rejected(extensions: Path) -> None:
    Path("own.py").write_text(KIND)
    Path("other.py").write_text(KIND)
    with pytest.raises(UserError, match=r"other\.py, line 6: Settings: own\.py already has the attention kind own"):
        import_extensions(["own.py", "other.py"])


def test_class_of_a_notebook_may_be_defined_again(extensions: Path) -> None:
    for default in (1, 2):

        @register
        class Own(regard.KindSettings):
            kind: Literal["own"] = "own"
            size: int = default

            def build(self, heads: int, width: int, scale: float | None = None) -> regard.Kind:
                raise NotImplementedError

    assert KINDS["own"].model_fields["size"].default == 2


# Model folders and runs


def test_model_folder_states_its_extension(extensions: Path) -> None:
    Path("own.py").write_text(KIND)
    import_extensions(["own.py"])
    Path("model").mkdir()
    save_model(Path("model"), own_model(), {})
    config = json.loads(Path("model", CONFIG).read_text())
    assert config["model"]["attention"] == {"kind": "own", "size": 5}
    assert config["extensions"] == {"attention kind": {"own": "own.py"}}
    assert "Needs the attention kind `own` of `own.py`." in build_card(Path("model"))
    loaded, _ = load_model(Path("model"))
    assert loaded.config == own_model().config
    forget_extensions()
    with pytest.raises(UserError) as error:
        load_model(Path("model"))
    assert str(error.value) == (
        "model/config.json: needs the attention kind own of own.py; give it with --import, or import it before you "
        "load the model"
    )


def test_model_without_extensions_states_none(extensions: Path) -> None:
    save_model(extensions, regard.Transformer(regard.TransformerConfig.base(20, **SMALL)), {})
    assert "extensions" not in json.loads((extensions / CONFIG).read_text())


@pytest.mark.parametrize("name", ["evil.py", "evil", "model/evil.py"])
def test_model_folder_does_not_import_what_it_names(name: str, extensions: Path) -> None:
    Path("model").mkdir()
    for folder in (Path(), Path("model")):
        (folder / "evil.py").write_text("from pathlib import Path\nPath('executed').touch()\n")
    save_model(Path("model"), regard.Transformer(regard.TransformerConfig.base(20, **SMALL)), {})
    config = json.loads(Path("model", CONFIG).read_text())
    config["model"]["attention"]["kind"] = "evil"
    config["extensions"] = {"attention kind": {"evil": name}}
    Path("model", CONFIG).write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"needs the attention kind evil of {name}"):
        load_model(Path("model"))
    assert not Path("executed").exists()


@pytest.mark.parametrize("stated", [[], "own.py", {"attention kind": 1}, {"nothing": {"x": "y"}}, {"model": []}, None])
def test_damaged_statement_is_ignored(stated: object, extensions: Path) -> None:
    save_model(extensions, regard.Transformer(regard.TransformerConfig.base(20, **SMALL)), {})
    config = json.loads((extensions / CONFIG).read_text()) | {"extensions": stated}
    (extensions / CONFIG).write_text(json.dumps(config))
    load_model(extensions)


def test_run_states_the_extensions_of_its_recipe(extensions: Path, painted: Path, command: Command) -> None:
    Path("focal.py").write_text(titled_files("objective")["focal.py"])
    import_extensions(["focal.py"])
    run_recipe(image_recipe(painted, objective={"kind": "focal", "gamma": 1.0}, training__steps=1), Path("run"))
    written = yaml.safe_load(Path("run/recipe.yaml").read_text())
    assert written["objective"] == {"kind": "focal", "gamma": 1.0}
    assert written["extensions"] == {"objective": {"focal": "focal.py"}}
    assert "extensions" not in json.loads(Path("run/best", CONFIG).read_text())  # only training needs it
    load_recipe(Path("run/recipe.yaml"))
    forget_extensions()
    with pytest.raises(UserError, match=r"run/recipe\.yaml: needs the objective focal of focal\.py; give it with"):
        load_recipe(Path("run/recipe.yaml"))
    assert regard.Classifier.load("run")(str(next(painted.rglob("*.png"))))


# Recipes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"objective": {"kind": "focal"}},
            "objective: kind must be one of cross-entropy; give an extension that has it",
        ),
        ({"objective": {"kind": "cross-entropie"}}, "objective: kind must be one of cross-entropy, found 'cross-entr"),
        ({"objective": {"kind": "teacher-forcing"}}, "objective: kind must be one of cross-entropy"),
        ({"objective": {"kind": ["focal"]}}, "objective: kind must be one of cross-entropy"),
        ({"objective__r_drop": 1.0}, "objective.r_drop is for model.kind=transformer, not vit"),
        ({"training__task": "sort"}, "training.task: 'sort' is not one of translation, nat, classification, croco"),
        ({"training__task": "translation"}, "training.task: translation is for model.kind=transformer, not vit"),
        (
            {"model__kind": "pooled"},
            "model.kind: 'pooled' is not one of transformer, nat, vit, swin, croco; give an ex",
        ),
        (
            {"model__attention": "own"},
            "kind must be one of full, linear, local, routing; give an extension that has it",
        ),
    ],
)
def test_unknown_names_are_rejected(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        image_recipe(tmp_path, **changes)
    assert message in str(error.value)


def test_objective_of_another_task_is_rejected(painted: Path) -> None:
    recipe = image_recipe(painted)
    assert recipe.changed(objective=CrossEntropySettings()).objective == CrossEntropySettings()
    with pytest.raises(UserError, match="objective: must be for the task classification, found masked-tokens for nat"):
        recipe.changed(objective=NATObjectiveSettings())


def test_own_objective_checks_its_keys(extensions: Path) -> None:
    Path("focal.py").write_text(titled_files("objective")["focal.py"])
    import_extensions(["focal.py"])
    with pytest.raises(
        UserError, match="objective: focal: gamma: input should be greater than or equal to 0, found -1"
    ):
        image_recipe(extensions, objective={"kind": "focal", "gamma": -1})
    with pytest.raises(UserError, match=r"objective: focal: unknown key gama; did you mean gamma\?"):
        image_recipe(extensions, objective={"kind": "focal", "gama": 1})


def test_task_that_is_named_replaces_the_usual_one(extensions: Path) -> None:
    class OwnRecipe(regard.SimpleRecipe):
        pass

    @register
    class OwnTask(regard.SimpleTask):  # type: ignore[type-arg]
        name = "own"
        recipe_type: ClassVar[type[Recipe]] = OwnRecipe

    recipe = load_recipe(None, [], {"model": {"kind": "vit", "layers": 1}, "training.task": "own"})
    assert isinstance(recipe, OwnRecipe)
    assert recipe.fixed_settings()["model.layers"] == 1
    with pytest.raises(UserError, match=r"unknown key model\.layer; did you mean model\.layers"):
        load_recipe(None, [], {"model": {"kind": "vit", "layer": 1}, "training.task": "own"})


def test_model_with_its_own_configuration_needs_no_preset(extensions: Path) -> None:
    Path("pooled.py").write_text(titled_files("model")["pooled.py"])
    import_extensions(["pooled.py"])
    given = {"model.kind": "pooled", "model.width": 8, "model.heads": 2, "data.images": "x", "data.size": 8}
    config = load_recipe(None, [], given).model_settings(3, 1)
    assert (config.width, config.image, config.classes, config.channels) == (8, (8, 8), 3, 1)
    with pytest.raises(UserError, match="'mini' is given, but this kind of model has none; omit it"):
        load_recipe(None, ["model.preset=mini"], given)
