"""Classification runs: results, changed data and settings, shared stores, initialisation."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from regard.errors import UserError
from regard.pipelines.classifier import Classifier
from regard.training.progress import Progress
from regard.training.run import run_recipe
from regard.training.tasks.classification.data import prepare_data
from regard.training.tasks.registry import load_recipe
from tests.images import COLOURS, TINY, image_recipe, paint

SHORT = {"training__steps": 4, "training__validate_every": 2, "training__log_every": 1}


def test_run_produces_a_self_contained_classifier(image_run: Path, painted: Path) -> None:
    assert {path.name for path in (image_run / "best").iterdir()} == {"config.json", "model.safetensors", "scores.json"}
    scores = json.loads((image_run / "best" / "scores.json").read_text())
    assert scores["validation"]["accuracy"] == 100
    config = json.loads((image_run / "best" / "config.json").read_text())
    assert config["images"]["classes"] == ["blue", "green", "red"]
    assert len(config["images"]["mean"]) == len(config["images"]["std"]) == 3
    label, probability = Classifier.load(image_run)(painted / "test" / "green" / "003.png")[0]
    assert label == "green" and probability > 0.5


def test_log_counts_images(image_run: Path) -> None:
    entries = [json.loads(line) for line in (image_run / "log.jsonl").read_text().splitlines()]
    assert [entry["images"] for entry in entries[:4]] == [12, 2 * 12, 5 * 12, 10 * 12]
    assert entries[0]["images_per_second"] > 0
    assert "tokens" not in entries[0]


def test_output_of_a_run(painted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paint(tmp_path / "set", 10, 1)
    (tmp_path / "set" / "red" / "bad.png").write_text("not an image")
    run_recipe(image_recipe(tmp_path / "set", data__max_bad=0.1, **SHORT), tmp_path / "run")
    output = capsys.readouterr().out
    assert "some images of each class are held out" in output
    assert "3 classes: 27 training images, 3 for validation; 8×8 pixels in colour" in output
    assert "skipped: 1 image that cannot be read; see" in output
    assert re.search(r"^0\.0 M parameters on \d+ CPU thread", output, re.M)
    skipped = tmp_path / "run" / "data" / "train" / "skipped.tsv"
    assert str(skipped) in output
    assert "bad.png\ta text file" in skipped.read_text()
    assert "images/s" in output


def test_changed_images_are_rejected_on_resuming(tmp_path: Path) -> None:
    images = paint(tmp_path / "set", 10, 1)
    constant = SHORT | {"optim__schedule": "constant"}
    run_recipe(image_recipe(images, **constant), tmp_path / "run")
    moved = shutil.move(images, tmp_path / "elsewhere")
    longer = constant | {"training__steps": 6}
    run_recipe(image_recipe(Path(moved), **longer), tmp_path / "run")
    Image.new("RGB", (8, 8)).save(Path(moved) / "red" / "new.png")
    with pytest.raises(UserError, match=r"the images have changed since the run in .* was created; restore them"):
        run_recipe(image_recipe(Path(moved), **constant | {"training__steps": 8}), tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model__width": 32}, "the run started with model.width=16, not 32"),
        ({"data__size": 16}, "the run started with data.size=8, not 16"),
        ({"augmentation__flip": 0.5}, "the run started with augmentation.flip=0"),
    ],
)
def test_changed_setting_is_rejected(change: dict[str, object], message: str, image_run: Path, painted: Path) -> None:
    with pytest.raises(UserError) as error:
        run_recipe(image_recipe(painted, **change), image_run)
    assert message in str(error.value)


def test_kind_of_the_model_must_not_change_on_resuming(image_run: Path, painted: Path) -> None:
    swin = load_recipe(None, [], {"data.images": str(painted), "model.kind": "swin"})
    with pytest.raises(UserError, match=r"the run started with model\.kind=vit, not swin"):
        run_recipe(swin, image_run)
    with pytest.raises(UserError, match=r"the run started with model\.kind=vit, not transformer"):
        run_recipe(load_recipe(Path("demo")), image_run)


def test_damaged_store_is_recreated(painted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    constant = SHORT | {"optim__schedule": "constant"}
    run_recipe(image_recipe(painted, **constant), tmp_path / "run")
    pixels = (tmp_path / "run" / "data" / "train" / "pixels.npy").read_bytes()
    (tmp_path / "run" / "data" / "train" / "pixels.npy").write_bytes(pixels[:-100])
    run_recipe(image_recipe(painted, **constant | {"training__steps": 6}), tmp_path / "run")
    assert "creating it again" in capsys.readouterr().out
    assert (tmp_path / "run" / "data" / "train" / "pixels.npy").read_bytes() == pixels


def test_runs_share_a_store_with_equal_settings(painted: Path, tmp_path: Path) -> None:
    store = {"data__store": str(tmp_path / "store"), "optim__schedule": "constant"} | SHORT
    run_recipe(image_recipe(painted, **store), tmp_path / "one")
    modified = (tmp_path / "store" / "train" / "pixels.npy").stat().st_mtime_ns
    run_recipe(image_recipe(painted, **store), tmp_path / "two")
    assert (tmp_path / "store" / "train" / "pixels.npy").stat().st_mtime_ns == modified
    assert not (tmp_path / "two" / "data" / "train").exists()
    with pytest.raises(UserError, match=r"was made with data.size=8, not 16; set the old value or another data.store"):
        run_recipe(image_recipe(painted, **store | {"data__size": 16}), tmp_path / "three")
    assert not (tmp_path / "three").exists()
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(UserError, match=r"store: cannot be opened \(No such file or directory\); restore it"):
        run_recipe(image_recipe(painted, **store | {"training__steps": 6}), tmp_path / "one")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("fit", "squash", r'data\.fit="crop", not "squash"'),
        ("channels", 1, r"data\.channels=null, not 1"),
        ("max_bad", 0.5, r"data\.max_bad=0\.01, not 0\.5"),
        ("max_pixels", 9999, r"data\.max_pixels=\d+, not 9999"),
        ("mean", (0.5, 0.5, 0.5), r"data\.mean=null, not \[0\.5, 0\.5, 0\.5\]"),
        ("std", (0.5, 0.5, 0.5), r"data\.std=null, not \[0\.5, 0\.5, 0\.5\]"),
        ("hold_out", 0.3, r"data\.hold_out=0\.1, not 0\.3"),
    ],
)
def test_store_that_was_made_with_other_settings_is_rejected(
    key: str, value: object, message: str, painted: Path, tmp_path: Path
) -> None:
    recipe = image_recipe(painted / "train", data__store=str(tmp_path / "store"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    prepare_data(tmp_path / "one", recipe, Progress(1))
    with pytest.raises(UserError, match=f"store: was made with {message}"):
        prepare_data(tmp_path / "two", recipe.changed(data=recipe.data.model_dump() | {key: value}), Progress(1))


def test_store_with_validation_images_does_not_depend_on_the_held_out_share(painted: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    recipe = image_recipe(painted / "train", data__store=str(tmp_path / "store"), data__valid=str(painted / "test"))
    prepare_data(tmp_path / "one", recipe, Progress(1))
    prepare_data(tmp_path / "one", recipe.with_group("data", hold_out=0.3), Progress(1))


@pytest.mark.parametrize(
    ("size", "changes", "advice"),
    [
        (
            32,
            {"model__preset": "tiny"},
            r"32 pixels would be enlarged to 224, .* tiny; set data.size=32 and model.patch=4",
        ),
        (29, {"model__preset": "tiny"}, "set data.size=28 and model.patch=4, or data.size=224 to enlarge them"),
        (8, {}, "8 pixels would be enlarged to 32, .* preset mini; set data.size=8 and model.patch=1, or data.size=32"),
        (8, {"model__kind": "swin"}, "preset mini; set data.size=8, or data.size=32 to enlarge them"),
    ],
)
def test_preset_does_not_enlarge_small_images(
    size: int, changes: dict[str, object], advice: str, tmp_path: Path
) -> None:
    images = paint(tmp_path / "set", 3, seed=1, size=size)
    model = {"model.kind": "vit", "training.steps": 1, "training.device": "cpu"}
    with pytest.raises(UserError, match=advice):
        run_recipe(image_recipe(images, model, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_are_enlarged_if_a_size_is_set_or_the_preset_is_not_much_larger(tmp_path: Path) -> None:
    one_step = TINY | {"training.steps": 1, "training.validate_every": 1}
    small = paint(tmp_path / "small", 3, seed=1, size=5)
    run_recipe(image_recipe(small, one_step, data__size=16), tmp_path / "one")
    half = paint(tmp_path / "half", 3, seed=1, size=16)
    without_size = {key: value for key, value in one_step.items() if key != "data.size"}
    run_recipe(image_recipe(half, without_size), tmp_path / "two")
    assert Classifier.load(tmp_path / "two").preprocessing.size == 32


def test_separate_validation_images(painted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = image_recipe(painted, data__valid=str(painted / "test"), **SHORT)
    run_recipe(recipe, tmp_path / "run")
    assert "60 training images, 30 for validation" in capsys.readouterr().out
    paint(tmp_path / "other", 2, 1, classes={"red": (200, 0, 0), "violet": (200, 0, 200)})
    with pytest.raises(UserError, match="class violet is unknown; the known classes are blue, green, red"):
        run_recipe(image_recipe(painted, data__valid=str(tmp_path / "other"), **SHORT), tmp_path / "second")


def initialised_run(folder: Path, images: Path, out: Path, **changes: object) -> Classifier:
    run_recipe(image_recipe(images, init__from=str(folder), **SHORT | {"optim__lr": 1e-9} | changes), out)
    return Classifier.load(out / "last")


def test_run_is_initialised_with_all_weights(
    image_run: Path, painted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = initialised_run(image_run, painted, tmp_path / "run")
    assert f"initialised with the weights of {image_run}\n" in capsys.readouterr().out
    before = Classifier.load(image_run)
    assert model.preprocessing == before.preprocessing
    for name, tensor in before.model.state_dict().items():
        assert torch.allclose(model.model.state_dict()[name], tensor, atol=1e-6), name


def test_new_classes_get_a_new_head_and_new_sizes_resized_positions(
    image_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = paint(tmp_path / "set", 10, 1, 16, COLOURS | {"white": (250, 250, 250)})
    model = initialised_run(image_run, images, tmp_path / "run", data__size=16)
    assert " and a new head" in capsys.readouterr().out
    before = Classifier.load(image_run)
    assert model.classes == ("blue", "green", "red", "white")
    assert (model.preprocessing.mean, model.preprocessing.std) == (before.preprocessing.mean, before.preprocessing.std)
    new, old = model.model.state_dict(), before.model.resized(16).state_dict()
    assert new["head.weight"].shape == (4, 16)
    for name in old:
        if not name.startswith("head."):
            assert torch.allclose(new[name], old[name], atol=1e-6), name


def test_run_with_the_classes_in_the_order_of_the_initial_model_can_be_resumed(
    image_run: Path, painted: Path, tmp_path: Path
) -> None:
    initial = Classifier.load(image_run)
    classes = ("red", "blue", "green")
    (tmp_path / "initial").mkdir()
    Classifier(initial.model, initial.preprocessing.changed(classes=classes)).save(tmp_path / "initial")
    constant = {"optim__schedule": "constant", "optim__lr": 1e-3}
    assert initialised_run(tmp_path / "initial", painted, tmp_path / "run", **constant).classes == classes
    resumed = initialised_run(tmp_path / "initial", painted, tmp_path / "run", **constant, training__steps=6)
    assert resumed.classes == classes


def test_setting_that_contradicts_the_initial_model_is_rejected(image_run: Path, painted: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.width: 32 contradicts 16 of .*, from which the run is initialised"):
        initialised_run(image_run, painted, tmp_path / "run", model__width=32)
    with pytest.raises(UserError, match=r"data\.channels: 1 contradicts 3 of"):
        initialised_run(image_run, painted, tmp_path / "run", data__channels=1)
    assert not (tmp_path / "run").exists()


def test_translator_is_rejected_as_initial_model(trained_run: Path, painted: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a text model; use regard translate"):
        initialised_run(trained_run, painted, tmp_path / "run")
