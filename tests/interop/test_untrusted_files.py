"""Untrusted files are imported or rejected: no code is executed, and rejected imports leave no files."""

import copy
import json
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from regard.errors import UserError
from regard.interop.files import read_folder, read_tensors
from regard.interop.import_model import import_model
from regard.pipelines.classifier import Classifier
from tests.interop.malicious_files import (
    CONFIG,
    Payload,
    huggingface_weights,
    make_folder,
    pickled_payload,
    timm_weights,
    write_archive,
    write_safetensors,
)

fuzz = settings(
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "foreign")


def rejection(path: Path, folder: Path, **options: Any) -> str:
    """Check that an import is rejected without leaving files, and return the message."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(UserError) as error:
        import_model(path, folder / "imported", **options)
    assert sorted(folder.rglob("*")) == before
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


def test_valid_folder_is_imported(folder: Path, tmp_path: Path) -> None:
    import_model(folder, tmp_path / "imported")
    assert Classifier.load(tmp_path / "imported").classes == ("bee", "cat", "dog")
    torch.save(timm_weights(), tmp_path / "timm.pt")
    import_model(tmp_path / "timm.pt", tmp_path / "more", {"heads": 2})


@pytest.mark.parametrize("name", ["model.pt", "model.bin", "model.pth", "model.safetensors", "model"])
@pytest.mark.parametrize("how", ["archive", "torch", "torch before 1.6", "bare", "nested"])
def test_no_code_in_a_file_is_executed(tmp_path: Path, name: str, how: str) -> None:
    path, mark = tmp_path / name, tmp_path / "mark"
    if how == "archive":
        write_archive(path, pickled_payload(mark))
    elif how == "torch":
        torch.save({"weight": torch.ones(2), "more": Payload(mark)}, path)
    elif how == "torch before 1.6":
        torch.save({"weight": Payload(mark)}, path, _use_new_zipfile_serialization=False)
    elif how == "bare":
        path.write_bytes(pickled_payload(mark))
    else:
        write_archive(path, pickle.dumps({"state_dict": {"a": [{"b": (Payload(mark),)}]}}, protocol=2))
    assert path.name in rejection(path, tmp_path)
    assert not mark.exists()
    shutil.rmtree(tmp_path / "folder", ignore_errors=True)
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder" / "pytorch_model.bin")
    rejection(tmp_path / "folder", tmp_path)
    assert not mark.exists()


def test_payload_is_executed_by_unsafe_loading(tmp_path: Path) -> None:
    write_archive(tmp_path / "x.pt", pickled_payload(tmp_path / "mark"))
    torch.load(tmp_path / "x.pt", weights_only=False)
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("content", [[torch.ones(2)], {"a": 1}, {1: torch.ones(2)}, {}, {"a": "b"}, None], ids=str)
def test_content_other_than_named_tensors_is_rejected(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "x.pt")
    rejection(tmp_path / "x.pt", tmp_path)


def test_sparse_tensors_are_rejected(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2, 2).to_sparse()}, tmp_path / "x.pt")
    assert "'a' is Tensor, not a dense tensor" in rejection(tmp_path / "x.pt", tmp_path)


def test_expanded_views_are_rejected(tmp_path: Path) -> None:
    torch.save({"big": torch.ones(1).expand(10**6, 10**6)}, tmp_path / "view.pt")
    assert "big has shape [1000000, 1000000]" in rejection(tmp_path / "view.pt", tmp_path)
    shared = torch.ones(1000)
    torch.save({f"layer.{i}": shared for i in range(1000)}, tmp_path / "shared.pt")
    assert "many times larger than the file" in rejection(tmp_path / "shared.pt", tmp_path)


def test_zip_bomb_is_rejected(tmp_path: Path) -> None:
    write_archive(tmp_path / "x.pt", b"x", compressed=True, **{"data/0": bytes(10**7)})
    assert (tmp_path / "x.pt").stat().st_size < 10**5
    assert "compressed or larger than the file" in rejection(tmp_path / "x.pt", tmp_path)
    write_archive(tmp_path / "small.pt", b"x", compressed=True)
    assert "compressed or larger than the file" in rejection(tmp_path / "small.pt", tmp_path)


def test_overlapping_entries_are_rejected(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "x.pt", b"x", **{"data/0": bytes(10**5)})
    with zipfile.ZipFile(path, "a") as archive:
        original = archive.getinfo("archive/data/0")
        for number in range(1, 9):
            entry = copy.copy(original)
            entry.filename = f"archive/data/{number}"
            archive.filelist.append(entry)
        archive._didModify = True  # type: ignore[attr-defined]
    assert "compressed or larger than the file" in rejection(path, tmp_path)


HEADERS: dict[str, tuple[Any, bytes, int | None]] = {
    "length beyond any disk": ({}, b"", 2**60),
    "length beyond the file": ({}, b"", 10**6),
    "length with sign bit": ({}, b"", 2**64 - 1),
    "not JSON": (b"{nonsense", b"", None),
    "not UTF-8": (b'{"\xff\xfe": 1}', b"", None),
    "a list": (b"[1, 2]", b"", None),
    "deeply nested": (b"[" * 100_000, b"", None),
    "offsets beyond the file": ({"a": F32 | {"data_offsets": [0, 10**6]}}, bytes(8), None),
    "reversed offsets": ({"a": F32 | {"data_offsets": [8, 0]}}, bytes(8), None),
    "negative offsets": ({"a": F32 | {"data_offsets": [-8, 0]}}, bytes(8), None),
    "overlapping": ({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, bytes(12), None),
    "gap": ({"a": F32, "b": F32 | {"data_offsets": [16, 24]}}, bytes(24), None),
    "unknown dtype": ({"a": F32 | {"dtype": "Q7"}}, bytes(8), None),
    "four-bit dtype": ({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, bytes(1), None),
    "shape of another size": ({"a": F32 | {"shape": [3]}}, bytes(8), None),
    "shape that overflows": ({"a": F32 | {"shape": [2**62, 2**62]}}, bytes(8), None),
    "negative shape": ({"a": F32 | {"shape": [-2]}}, bytes(8), None),
    "fractional shape": ({"a": F32 | {"shape": [0.5]}}, bytes(8), None),
    "no data": ({"a": F32}, b"", None),
    "trailing data": ({"a": F32}, bytes(100), None),
    "empty": ({}, b"", None),
}


@pytest.mark.parametrize("what", HEADERS)
def test_invalid_headers_are_rejected(folder: Path, tmp_path: Path, what: str) -> None:
    header, body, length = HEADERS[what]
    path = write_safetensors(folder / "model.safetensors", header, body, length)
    message = rejection(folder, tmp_path)
    assert path.name in message or (what in ("four-bit dtype", "empty") and "is missing" in message)


@pytest.mark.parametrize("size", [0, 4, 8, 9, 100, -1, -100])
def test_truncated_file_is_rejected(folder: Path, tmp_path: Path, size: int) -> None:
    for path in (folder / "model.safetensors", tmp_path / "model.pt"):
        if path.suffix == ".pt":
            torch.save(timm_weights(), path)
        path.write_bytes(path.read_bytes()[:size])
        target = folder if path.parent == folder else path
        assert path.name in rejection(target, tmp_path)


def test_every_missing_tensor_is_named(folder: Path, tmp_path: Path) -> None:
    tensors = huggingface_weights()
    for missing in tensors:
        save_file({name: tensor for name, tensor in tensors.items() if name != missing}, folder / "model.safetensors")
        if missing == "classifier.weight":  # without it, the model has no classes
            continue
        assert f"tensor {missing.removeprefix('vit.')} is missing" in rejection(folder, tmp_path)


def test_tensors_of_other_shapes_and_dtypes_are_named(folder: Path, tmp_path: Path) -> None:
    tensors = huggingface_weights()
    name = "vit.layernorm.weight"
    for wrong, message in (
        (torch.ones(9), "layernorm.weight has shape [9]"),
        (torch.ones(8, 1), "layernorm.weight has shape [8, 1]"),
        (torch.tensor(1.0), "layernorm.weight has shape []"),
        (torch.ones(0), "layernorm.weight has shape [0]"),
        (torch.ones(8, dtype=torch.int8), "layernorm.weight has dtype torch.int8"),
    ):
        save_file(tensors | {name: wrong}, folder / "model.safetensors")
        assert message in rejection(folder, tmp_path)
    save_file(tensors | {"vit.gate": torch.ones(1)}, folder / "model.safetensors")
    assert "unknown tensor gate" in rejection(folder, tmp_path)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hidden_size": 10**9}, "too large for any memory"),
        ({"hidden_size": 10**30}, "too large for any memory"),
        ({"intermediate_size": 10**9}, "feed_forward.inner"),
        ({"image_size": 4 * 10**6}, "image"),
        ({"num_hidden_layers": 10**9}, "layers"),
        ({"num_hidden_layers": -1}, "layers"),
        ({"num_attention_heads": 0}, "heads"),
        ({"hidden_size": "eight"}, "width"),
        ({"layer_norm_eps": float("nan")}, "norm_eps"),
        ({"hidden_act": ["gelu"]}, "activation"),
        ({"model_type": "llama"}, "model_type"),
        ({"model_type": ["vit"]}, "model_type"),
        ({"patch_size": None}, "patch"),
    ],
    ids=str,
)
def test_invalid_config_values_are_rejected_by_key(
    folder: Path, tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | change))
    assert key in rejection(folder, tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff\xfe", b"{" * 9, b"[" * 200_000, b'{"a": 1' + b"0" * 9000], ids=len
)
def test_damaged_configs_are_rejected(folder: Path, tmp_path: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    assert "config.json" in rejection(folder, tmp_path)


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", "", ".", "a\0b"]
)
def test_index_cannot_refer_to_other_folders(folder: Path, tmp_path: Path, name: str) -> None:
    save_file(huggingface_weights(), tmp_path / "secret.safetensors")
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    assert index.name in rejection(folder, tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[" * 200_000], ids=len
)
def test_damaged_index_is_rejected(folder: Path, tmp_path: Path, content: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in rejection(folder, tmp_path)


def test_shards_are_read_and_missing_shards_are_named(folder: Path, tmp_path: Path) -> None:
    tensors = huggingface_weights()
    (folder / "model.safetensors").unlink()
    shard_of = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(shard_of.values()):
        save_file({name: tensors[name] for name, file in shard_of.items() if file == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shard_of}))
    assert read_folder(folder).keys() == tensors.keys()
    import_model(folder, tmp_path / "imported")
    shutil.rmtree(tmp_path / "imported")
    (folder / "part-1.safetensors").unlink()
    assert "part-1.safetensors: no such file" in rejection(folder, tmp_path)


def test_pickled_shards_are_read_without_executing_code(folder: Path, tmp_path: Path) -> None:
    tensors, names = huggingface_weights(), sorted(huggingface_weights())
    (folder / "model.safetensors").unlink()
    shard_of = {name: f"part-{index % 2}.bin" for index, name in enumerate(names)}
    for shard in ("part-0.bin", "part-1.bin"):
        torch.save({name: tensors[name] for name in names if shard_of[name] == shard}, folder / shard)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shard_of}))
    import_model(folder, tmp_path / "imported")
    shutil.rmtree(tmp_path / "imported")
    torch.save({"weight": Payload(tmp_path / "mark")}, folder / "part-1.bin")
    message = rejection(folder, tmp_path)
    assert re.search(r"part-1.bin: .* could execute code \(it refers to [\w.]+\); save", message)
    assert "weights_only" not in message and not (tmp_path / "mark").exists()


def test_weights_with_nan_are_rejected(folder: Path, tmp_path: Path) -> None:
    broken = huggingface_weights()
    broken["classifier.bias"][1] = torch.nan
    save_file(broken, folder / "model.safetensors")
    assert "tensor classifier.bias contains NaN" in rejection(folder, tmp_path)


def test_regard_folders_and_exports_are_not_imported(folder: Path, tmp_path: Path) -> None:
    import_model(folder, tmp_path / "run" / "best")
    for regard_folder in (tmp_path / "run", tmp_path / "run" / "best"):
        assert "already a model folder" in rejection(regard_folder, tmp_path)
    for name, message in {"model.onnx": "for onnxruntime", "encoder.pt2": "for PyTorch"}.items():
        other = tmp_path / name.replace(".", "-")
        other.mkdir()
        (other / name).touch()
        assert message in rejection(other, tmp_path)
        with pytest.raises(UserError, match=message):
            Classifier.load(other)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"model_type": "t5"}))
    assert "'t5'; supported are marian, pegasus, blenderbot, bert, vit, swin" in rejection(folder, tmp_path)


def test_broken_links_and_missing_files_are_rejected(folder: Path, tmp_path: Path) -> None:
    weights_file, config = folder / "model.safetensors", folder / "config.json"
    weights_file.unlink()
    weights_file.symlink_to(tmp_path / "nowhere")
    assert "no weights found" in rejection(folder, tmp_path)
    weights_file.unlink()
    weights_file.symlink_to(weights_file)
    assert "no weights found" in rejection(folder, tmp_path)
    weights_file.unlink()
    weights_file.mkdir()
    assert "model.safetensors: is a directory, but must be a regular file" in rejection(folder, tmp_path)
    weights_file.rmdir()
    save_file(huggingface_weights(), weights_file)
    config.unlink()
    config.symlink_to(tmp_path / "nowhere")
    assert "not those of a timm or torchvision model" in rejection(folder, tmp_path)
    assert "no such file or folder" in rejection(tmp_path / "nowhere", tmp_path)


LIMITED = """
import resource, sys
from pathlib import Path
from regard.errors import UserError
from regard.interop.import_model import import_model
good, *hostile = sys.argv[1:]
import_model(Path(good), Path(good + ".imported"))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
for name in hostile:
    try:
        import_model(Path(name), Path(name + ".imported"))
        print(name, "imported")
    except UserError:
        print(name, "rejected")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc of Linux")
def test_rejecting_a_file_needs_little_memory(tmp_path: Path) -> None:
    """Run all imports in one process that may use 256 MiB more than after a valid import."""
    hostile = []
    for number, change in enumerate(
        ({"hidden_size": 2**20, "num_attention_heads": 2}, {"image_size": 2**22}, {"intermediate_size": 2**40})
    ):
        hostile.append(make_folder(tmp_path / f"config{number}"))
        (hostile[-1] / "config.json").write_text(json.dumps(CONFIG | change))
    for what in ("length beyond any disk", "shape that overflows", "deeply nested"):
        hostile.append(make_folder(tmp_path / what.replace(" ", "-")))
        write_safetensors(hostile[-1] / "model.safetensors", *HEADERS[what])
    torch.save({"cls_token": torch.ones(1).expand(2**20, 2**20)}, tmp_path / "view.pt")
    write_archive(tmp_path / "bomb.pt", b"x", compressed=True, **{"data/0": bytes(2**29)})
    hostile += [tmp_path / "view.pt", tmp_path / "bomb.pt"]
    process = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, [make_folder(tmp_path / "good"), *hostile])],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.stdout.splitlines() == [f"{path} rejected" for path in hostile], process.stderr[-500:]


def mutate(content: bytes, edits: list[tuple[int, int, int]], cut: int | None) -> bytes:
    """Change bytes, more often among the first thousand, and truncate the content."""
    changed = bytearray(content)
    for position, region, value in edits:
        changed[position % (min(1000, len(changed)) if region else len(changed))] = value
    return bytes(changed if cut is None else changed[: cut % len(changed)])


edits = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 2), st.integers(0, 255)), max_size=8)
cuts = st.none() | st.integers(0, 2**20)


def assert_imported_or_rejected(path: Path, folder: Path, **options: Any) -> None:
    out = folder / "imported"
    shutil.rmtree(out, ignore_errors=True)
    before = {entry for entry in folder.rglob("*") if out not in (entry, *entry.parents)}
    try:
        import_model(path, out, **options)
        assert (out / "model.safetensors").is_file()
    except UserError as error:
        assert str(path) in str(error)
        assert not out.exists()
    assert {entry for entry in folder.rglob("*") if out not in (entry, *entry.parents)} == before


@fuzz
@given(edits=edits, cut=cuts)
def test_any_safetensors_file_is_imported_or_rejected(
    tmp_path: Path, edits: list[tuple[int, int, int]], cut: int | None
) -> None:
    folder = tmp_path / "foreign"
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    path = folder / "model.safetensors"
    path.write_bytes(mutate(path.read_bytes(), edits, cut))
    assert_imported_or_rejected(folder, tmp_path)


@fuzz
@given(edits=edits, cut=cuts)
def test_any_file_of_torch_is_imported_or_rejected(
    tmp_path: Path, edits: list[tuple[int, int, int]], cut: int | None
) -> None:
    path = tmp_path / "timm.pt"
    torch.save(timm_weights(), path)
    path.write_bytes(mutate(path.read_bytes(), edits, cut))
    assert_imported_or_rejected(path, tmp_path, changes={"heads": 2})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@fuzz
@given(changes=st.dictionaries(st.sampled_from([*CONFIG, "num_labels", "label_names"]), json_values, max_size=3))
def test_any_config_is_imported_or_rejected(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = tmp_path / "foreign"
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    assert_imported_or_rejected(folder, tmp_path)


@fuzz
@given(processor=json_values | st.fixed_dictionaries({"image_mean": json_values, "image_std": json_values}))
def test_any_preprocessor_is_imported_or_rejected(tmp_path: Path, processor: Any) -> None:
    folder = tmp_path / "foreign"
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    assert_imported_or_rejected(folder, tmp_path)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    temporary = tmp_path_factory.mktemp("own")
    make_folder(temporary / "foreign")
    import_model(temporary / "foreign", temporary / "imported")
    return temporary / "imported"


@fuzz
@given(name=st.sampled_from(["config.json", "model.safetensors"]), edits=edits, cut=cuts)
def test_any_model_folder_is_loaded_or_rejected(
    model_folder: Path, tmp_path: Path, name: str, edits: list[tuple[int, int, int]], cut: int | None
) -> None:
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(model_folder, copy)
    (copy / name).write_bytes(mutate((model_folder / name).read_bytes(), edits, cut))
    try:
        Classifier.load(copy)
    except UserError as error:
        assert str(copy) in str(error)


def change_config(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        values = json.loads(path.read_text())
        change(values["model"])
        path.write_text(json.dumps(values))

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_config(lambda model: model.update(width=2**40)), "too large for any memory"),
        (change_config(lambda model: model.update(hidden=10**9)), "feed_forward.inner"),
        (change_config(lambda model: model.update(layers=10**9)), "layers"),
        (lambda folder: write_safetensors(folder / "model.safetensors", {}, b"", 2**60), "model.safetensors"),
        (lambda folder: (folder / "config.json").write_text("[" * 200_000), "config.json"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors"),
    ],
)
def test_damage_in_model_folders_is_named(
    model_folder: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model_folder, copy)
    damage(copy)
    with pytest.raises(UserError, match=message):
        Classifier.load(copy)


def test_saved_tensors_are_read(tmp_path: Path) -> None:
    torch.save({"model": timm_weights(), "epoch": 3}, tmp_path / "x.pt")
    found = read_tensors(tmp_path / "x.pt")
    assert all(torch.equal(tensor, timm_weights()[name]) for name, tensor in found.items())
    assert load_file(make_folder(tmp_path / "foreign") / "model.safetensors").keys() == huggingface_weights().keys()
