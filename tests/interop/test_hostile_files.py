"""Whatever a file from elsewhere holds: it is read, or refused by name. Nothing in it is run, nothing left behind."""

import json
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from regard.errors import UserError
from regard.interop.import_model import import_model
from regard.interop.tensors import read_folder, read_tensors
from regard.pipelines.classifier import Classifier
from tests.interop.hostile import (
    VALUES,
    Payload,
    archive,
    make_folder,
    pickled_payload,
    safetensors_file,
    timm_weights,
    weights,
)

fuzz = settings(
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "theirs")


def refusal(path: Path, room: Path, **options: Any) -> str:
    """What is said about a file or folder that must not come in."""
    before = sorted(room.rglob("*"))
    with pytest.raises(UserError) as said:
        import_model(path, room / "ours", **options)
    assert sorted(room.rglob("*")) == before
    assert str(path) in str(said.value) and "\n" not in str(said.value)
    return str(said.value)


def test_the_folder_itself_is_good(folder: Path, tmp_path: Path) -> None:
    import_model(folder, tmp_path / "ours")
    assert Classifier.load(tmp_path / "ours").classes == ("bee", "cat", "dog")
    torch.save(timm_weights(), tmp_path / "timm.pt")
    import_model(tmp_path / "timm.pt", tmp_path / "more", {"heads": 2})


# Pickles


@pytest.mark.parametrize("name", ["model.pt", "model.bin", "model.pth", "model.safetensors", "model"])
@pytest.mark.parametrize("how", ["archive", "torch", "torch before 1.6", "bare", "nested"])
def test_no_file_can_make_python_run_something(tmp_path: Path, name: str, how: str) -> None:
    path, mark = tmp_path / name, tmp_path / "mark"
    if how == "archive":
        archive(path, pickled_payload(mark))
    elif how == "torch":
        torch.save({"weight": torch.ones(2), "more": Payload(mark)}, path)
    elif how == "torch before 1.6":
        torch.save({"weight": Payload(mark)}, path, _use_new_zipfile_serialization=False)
    elif how == "bare":
        path.write_bytes(pickled_payload(mark))
    else:
        archive(path, pickle.dumps({"state_dict": {"a": [{"b": (Payload(mark),)}]}}, protocol=2))
    assert path.name in refusal(path, tmp_path)
    assert not mark.exists()
    shutil.rmtree(tmp_path / "folder", ignore_errors=True)
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder" / "pytorch_model.bin")
    refusal(tmp_path / "folder", tmp_path)
    assert not mark.exists()


def test_the_payload_would_have_run(tmp_path: Path) -> None:
    archive(tmp_path / "x.pt", pickled_payload(tmp_path / "mark"))
    torch.load(tmp_path / "x.pt", weights_only=False)
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("content", [[torch.ones(2)], {"a": 1}, {1: torch.ones(2)}, {}, {"a": "b"}, None], ids=str)
def test_what_is_not_tensors_by_name_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "x.pt")
    refusal(tmp_path / "x.pt", tmp_path)


def test_sparse_tensors_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2, 2).to_sparse()}, tmp_path / "x.pt")
    assert "'a' is Tensor, not a plain tensor" in refusal(tmp_path / "x.pt", tmp_path)


def test_views_without_end_are_refused(tmp_path: Path) -> None:
    torch.save({"big": torch.ones(1).expand(10**6, 10**6)}, tmp_path / "view.pt")
    assert "big says that it is [1000000, 1000000]" in refusal(tmp_path / "view.pt", tmp_path)
    shared = torch.ones(1000)
    torch.save({f"layer.{i}": shared for i in range(1000)}, tmp_path / "shared.pt")
    assert "many times the file" in refusal(tmp_path / "shared.pt", tmp_path)


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    archive(tmp_path / "x.pt", b"x", compressed=True, **{"data/0": bytes(10**7)})
    assert (tmp_path / "x.pt").stat().st_size < 10**5
    assert "compressed or larger than the file" in refusal(tmp_path / "x.pt", tmp_path)


# Safetensors

HEADERS: dict[str, tuple[Any, bytes, int | None]] = {
    "length beyond every disk": ({}, b"", 2**60),
    "length beyond the file": ({}, b"", 10**6),
    "length with its sign bit": ({}, b"", 2**64 - 1),
    "not JSON": (b"{nonsense", b"", None),
    "not UTF-8": (b'{"\xff\xfe": 1}', b"", None),
    "a list": (b"[1, 2]", b"", None),
    "nested without end": (b"[" * 100_000, b"", None),
    "offsets beyond the file": ({"a": F32 | {"data_offsets": [0, 10**6]}}, bytes(8), None),
    "offsets turned round": ({"a": F32 | {"data_offsets": [8, 0]}}, bytes(8), None),
    "offsets below zero": ({"a": F32 | {"data_offsets": [-8, 0]}}, bytes(8), None),
    "overlapping": ({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, bytes(12), None),
    "a hole": ({"a": F32, "b": F32 | {"data_offsets": [16, 24]}}, bytes(24), None),
    "unknown type": ({"a": F32 | {"dtype": "Q7"}}, bytes(8), None),
    "a type of four bits": ({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, bytes(1), None),
    "shape of another size": ({"a": F32 | {"shape": [3]}}, bytes(8), None),
    "shape that overflows": ({"a": F32 | {"shape": [2**62, 2**62]}}, bytes(8), None),
    "shape below zero": ({"a": F32 | {"shape": [-2]}}, bytes(8), None),
    "shape of fractions": ({"a": F32 | {"shape": [0.5]}}, bytes(8), None),
    "nothing behind the header": ({"a": F32}, b"", None),
    "more behind the header": ({"a": F32}, bytes(100), None),
    "empty": ({}, b"", None),
}


@pytest.mark.parametrize("what", HEADERS)
def test_absurd_headers_are_refused(folder: Path, tmp_path: Path, what: str) -> None:
    header, body, length = HEADERS[what]
    path = safetensors_file(folder / "model.safetensors", header, body, length)
    said = refusal(folder, tmp_path)
    assert path.name in said or (what in ("a type of four bits", "empty") and "no tensor" in said)


@pytest.mark.parametrize("size", [0, 4, 8, 9, 100, -1, -100])
def test_a_truncated_file_is_refused(folder: Path, tmp_path: Path, size: int) -> None:
    for path in (folder / "model.safetensors", tmp_path / "model.pt"):
        if path.suffix == ".pt":
            torch.save(timm_weights(), path)
        path.write_bytes(path.read_bytes()[:size])
        target = folder if path.parent == folder else path
        assert path.name in refusal(target, tmp_path)


# Tensors that do not fit


def test_every_tensor_that_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    whole = weights()
    for gone in whole:
        save_file({name: tensor for name, tensor in whole.items() if name != gone}, folder / "model.safetensors")
        if gone == "classifier.weight":  # without it, it is a model without classes
            continue
        said = refusal(folder, tmp_path)
        assert f"no tensor {gone.removeprefix('vit.')}" in said


def test_tensors_of_other_shapes_and_types_are_named(folder: Path, tmp_path: Path) -> None:
    whole = weights()
    name = "vit.layernorm.weight"
    for wrong, said in (
        (torch.ones(9), "layernorm.weight is [9]"),
        (torch.ones(8, 1), "layernorm.weight is [8, 1]"),
        (torch.tensor(1.0), "layernorm.weight is []"),
        (torch.ones(0), "layernorm.weight is [0]"),
        (torch.ones(8, dtype=torch.int8), "layernorm.weight holds torch.int8"),
    ):
        save_file(whole | {name: wrong}, folder / "model.safetensors")
        assert said in refusal(folder, tmp_path)
    save_file(whole | {"vit.gate": torch.ones(1)}, folder / "model.safetensors")
    assert "unknown tensor gate" in refusal(folder, tmp_path)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hidden_size": 10**9}, "too large for any memory"),
        ({"hidden_size": 10**30}, "too large for any memory"),
        ({"intermediate_size": 10**9}, "feed_forward.inner"),
        ({"image_size": 4 * 10**6}, "positions"),
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
def test_absurd_configs_are_refused_by_key(folder: Path, tmp_path: Path, change: dict[str, Any], key: str) -> None:
    (folder / "config.json").write_text(json.dumps(VALUES | change))
    assert key in refusal(folder, tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff\xfe", b"{" * 9, b"[" * 200_000, b'{"a": 1' + b"0" * 9000], ids=len
)
def test_configs_that_are_none_are_refused(folder: Path, tmp_path: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    assert "config.json" in refusal(folder, tmp_path)


# Folders


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", "", ".", "a\0b"]
)
def test_an_index_cannot_lead_out_of_its_folder(folder: Path, tmp_path: Path, name: str) -> None:
    save_file(weights(), tmp_path / "secret.safetensors")
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    assert index.name in refusal(folder, tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[" * 200_000], ids=len
)
def test_a_damaged_index_is_refused(folder: Path, tmp_path: Path, content: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in refusal(folder, tmp_path)


def test_shards_are_read_and_a_missing_one_is_named(folder: Path, tmp_path: Path) -> None:
    whole = weights()
    (folder / "model.safetensors").unlink()
    halves = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(whole)}
    for part in set(halves.values()):
        save_file({name: whole[name] for name, where in halves.items() if where == part}, folder / part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": halves}))
    assert read_folder(folder).keys() == whole.keys()
    import_model(folder, tmp_path / "ours")
    shutil.rmtree(tmp_path / "ours")
    (folder / "part-1.safetensors").unlink()
    assert "part-1.safetensors: no such file" in refusal(folder, tmp_path)


def test_pickled_parts_are_read_as_tensors_alone(folder: Path, tmp_path: Path) -> None:
    whole, names = weights(), sorted(weights())
    (folder / "model.safetensors").unlink()
    halves = {name: f"part-{place % 2}.bin" for place, name in enumerate(names)}
    for part in ("part-0.bin", "part-1.bin"):
        torch.save({name: whole[name] for name in names if halves[name] == part}, folder / part)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": halves}))
    import_model(folder, tmp_path / "ours")
    shutil.rmtree(tmp_path / "ours")
    torch.save({"weight": Payload(tmp_path / "mark")}, folder / "part-1.bin")
    said = refusal(folder, tmp_path)
    assert re.search(r"part-1.bin: .* could run code \(it names [\w.]+\); save", said)
    assert "weights_only" not in said and not (tmp_path / "mark").exists()


def test_weights_that_are_no_numbers(folder: Path, tmp_path: Path) -> None:
    broken = weights()
    broken["classifier.bias"][1] = torch.nan
    save_file(broken, folder / "model.safetensors")
    assert "tensor classifier.bias holds NaN" in refusal(folder, tmp_path)


def test_what_needs_no_import_or_cannot_have_one(folder: Path, tmp_path: Path) -> None:
    import_model(folder, tmp_path / "run" / "best")
    for ours in (tmp_path / "run", tmp_path / "run" / "best"):
        assert "of regard already" in refusal(ours, tmp_path)
    for name, said in {
        "model.onnx": "for onnxruntime",
        "encoder.pt2": "for PyTorch",
        "model.bin": "CTranslate2",
    }.items():
        other = tmp_path / name.replace(".", "-")
        other.mkdir()
        (other / name).touch()
        assert said in refusal(other, tmp_path)
        with pytest.raises(UserError, match=said):
            Classifier.load(other)
    (folder / "config.json").write_text(json.dumps(VALUES | {"model_type": "t5"}))
    assert "'t5'; marian, pegasus, blenderbot, bert, vit, swin can be read" in refusal(folder, tmp_path)


def test_links_to_nowhere_folders_and_nothing_at_all(folder: Path, tmp_path: Path) -> None:
    weights_file, config = folder / "model.safetensors", folder / "config.json"
    weights_file.unlink()
    weights_file.symlink_to(tmp_path / "nowhere")
    assert "no weights in it" in refusal(folder, tmp_path)
    weights_file.unlink()
    weights_file.symlink_to(weights_file)
    assert "no weights in it" in refusal(folder, tmp_path)
    weights_file.unlink()
    weights_file.mkdir()
    assert "no weights in it" in refusal(folder, tmp_path)
    weights_file.rmdir()
    save_file(weights(), weights_file)
    config.unlink()
    config.symlink_to(tmp_path / "nowhere")
    assert "neither a model of transformers, timm or torchvision" in refusal(folder, tmp_path)
    assert "no such file or folder" in refusal(tmp_path / "nowhere", tmp_path)


# Memory

LIMITED = """
import resource, sys
from pathlib import Path
from regard.errors import UserError
from regard.interop.import_model import import_model
good, *hostile = sys.argv[1:]
import_model(Path(good), Path(good + ".ours"))
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28, taken + 2**28))
for name in hostile:
    try:
        import_model(Path(name), Path(name + ".ours"))
        print(name, "came in")
    except UserError:
        print(name, "refused")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is counted by Linux")
def test_refusing_takes_no_memory(tmp_path: Path) -> None:
    """All in one process, which may take 256 MiB more than it has before."""
    hostile = []
    for number, change in enumerate(
        ({"hidden_size": 2**20, "num_attention_heads": 2}, {"image_size": 2**22}, {"intermediate_size": 2**40})
    ):
        hostile.append(make_folder(tmp_path / f"config{number}"))
        (hostile[-1] / "config.json").write_text(json.dumps(VALUES | change))
    for what in ("length beyond every disk", "shape that overflows", "nested without end"):
        hostile.append(make_folder(tmp_path / what.replace(" ", "-")))
        safetensors_file(hostile[-1] / "model.safetensors", *HEADERS[what])
    torch.save({"cls_token": torch.ones(1).expand(2**20, 2**20)}, tmp_path / "view.pt")
    archive(tmp_path / "bomb.pt", b"x", compressed=True, **{"data/0": bytes(2**29)})
    hostile += [tmp_path / "view.pt", tmp_path / "bomb.pt"]
    answer = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, [make_folder(tmp_path / "good"), *hostile])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.stdout.splitlines() == [f"{path} refused" for path in hostile], answer.stderr[-500:]


# Anything at all


def mutate(content: bytes, edits: list[tuple[int, int, int]], cut: int | None) -> bytes:
    """Bytes changed, in the first thousand more often than elsewhere, and the end taken away."""
    changed = bytearray(content)
    for place, region, value in edits:
        changed[place % (min(1000, len(changed)) if region else len(changed))] = value
    return bytes(changed if cut is None else changed[: cut % len(changed)])


edits = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 2), st.integers(0, 255)), max_size=8)
cuts = st.none() | st.integers(0, 2**20)


def comes_in_or_is_refused(path: Path, room: Path, **options: Any) -> None:
    out = room / "ours"
    shutil.rmtree(out, ignore_errors=True)
    before = {entry for entry in room.rglob("*") if out not in (entry, *entry.parents)}
    try:
        import_model(path, out, **options)
        assert (out / "model.safetensors").is_file()
    except UserError as error:
        assert str(path) in str(error)
        assert not out.exists()
    assert {entry for entry in room.rglob("*") if out not in (entry, *entry.parents)} == before


@fuzz
@given(edits=edits, cut=cuts)
def test_any_safetensors_file_comes_in_or_is_refused(
    tmp_path: Path, edits: list[tuple[int, int, int]], cut: int | None
) -> None:
    folder = tmp_path / "theirs"
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    path = folder / "model.safetensors"
    path.write_bytes(mutate(path.read_bytes(), edits, cut))
    comes_in_or_is_refused(folder, tmp_path)


@fuzz
@given(edits=edits, cut=cuts)
def test_any_file_of_torch_comes_in_or_is_refused(
    tmp_path: Path, edits: list[tuple[int, int, int]], cut: int | None
) -> None:
    path = tmp_path / "timm.pt"
    torch.save(timm_weights(), path)
    path.write_bytes(mutate(path.read_bytes(), edits, cut))
    comes_in_or_is_refused(path, tmp_path, changes={"heads": 2})


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@fuzz
@given(changes=st.dictionaries(st.sampled_from([*VALUES, "num_labels", "label_names"]), anything, max_size=3))
def test_any_config_comes_in_or_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = tmp_path / "theirs"
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    (folder / "config.json").write_text(json.dumps(VALUES | changes))
    comes_in_or_is_refused(folder, tmp_path)


@fuzz
@given(shown=anything | st.fixed_dictionaries({"image_mean": anything, "image_std": anything}))
def test_any_preprocessor_comes_in_or_is_refused(tmp_path: Path, shown: Any) -> None:
    folder = tmp_path / "theirs"
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(shown))
    comes_in_or_is_refused(folder, tmp_path)


# Our own folders, which may come from elsewhere too


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("own")
    make_folder(room / "theirs")
    import_model(room / "theirs", room / "ours")
    return room / "ours"


@fuzz
@given(name=st.sampled_from(["config.json", "model.safetensors"]), edits=edits, cut=cuts)
def test_any_folder_of_our_own_loads_or_is_refused(
    ours: Path, tmp_path: Path, name: str, edits: list[tuple[int, int, int]], cut: int | None
) -> None:
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ours, copy)
    (copy / name).write_bytes(mutate((ours / name).read_bytes(), edits, cut))
    try:
        Classifier.load(copy)
    except UserError as error:
        assert str(copy) in str(error)


def absurd(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        values = json.loads(path.read_text())
        change(values["model"])
        path.write_text(json.dumps(values))

    return apply


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (absurd(lambda model: model.update(width=2**40)), "too large for any memory"),
        (absurd(lambda model: model.update(hidden=10**9)), "feed_forward.inner"),
        (absurd(lambda model: model.update(layers=10**9)), "layers"),
        (lambda folder: safetensors_file(folder / "model.safetensors", {}, b"", 2**60), "model.safetensors"),
        (lambda folder: (folder / "config.json").write_text("[" * 200_000), "config.json"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors"),
    ],
)
def test_damage_in_our_own_folders_is_named(
    ours: Path, tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ours, copy)
    damage(copy)
    with pytest.raises(UserError, match=said):
        Classifier.load(copy)


def test_the_reader_of_tensors_gives_what_was_saved(tmp_path: Path) -> None:
    torch.save({"model": timm_weights(), "epoch": 3}, tmp_path / "x.pt")
    found = read_tensors(tmp_path / "x.pt")
    assert all(torch.equal(tensor, timm_weights()[name]) for name, tensor in found.items())
    assert load_file(make_folder(tmp_path / "theirs") / "model.safetensors").keys() == weights().keys()
