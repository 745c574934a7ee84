"""`regard embed` with text models."""

import gzip
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from regard import Translator, UserError
from regard.pipelines import embedder
from regard.pipelines.embedder import embed_lines, save_arrays
from tests.conftest import Command

TEXTS = ["I love apples", "", "You buy tea and books", "   ", "I love apples"]


@pytest.fixture
def loaded(trained_run: Path) -> Translator:
    return Translator.load(trained_run)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.en"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_mean_pooling_gives_one_vector_per_line(
    suffix: str, source: Path, loaded: Translator, trained_run: Path, command: Command
) -> None:
    out = source.with_suffix(suffix)
    answer = command("embed", trained_run, "--input", source, "--out", out)
    assert (answer.code, answer.err, answer.out) == (0, "", f"{out}: embeddings 5 × 32\n")
    array = np.load(out) if suffix == ".npy" else load_file(out)["embeddings"]
    assert (array.shape, array.dtype) == ((5, 32), np.float32)
    for row, text in zip(array, TEXTS, strict=True):
        (alone,) = loaded.embed([text])
        np.testing.assert_allclose(row, alone.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(array[0], array[4])
    assert not np.allclose(array[0], array[2], atol=1e-2)


def test_no_pooling_gives_one_vector_per_token(
    source: Path, loaded: Translator, trained_run: Path, command: Command
) -> None:
    out = source.with_suffix(".safetensors")
    assert command("embed", trained_run, "--input", source, "--out", out, "--pool", "none").code == 0
    arrays = load_file(out)
    vectors, offsets = arrays["vectors"], arrays["offsets"]
    assert (offsets.dtype, vectors.dtype) == (np.int64, np.float32)
    assert (offsets[0], offsets[-1], len(offsets)) == (0, len(vectors), len(TEXTS) + 1)
    tokens = [
        max(1, len(loaded.vocabularies.source.encode(text))) for text in TEXTS
    ]  # an empty line has the vector of END
    assert np.diff(offsets).tolist() == tokens
    (alone,) = loaded.embed([TEXTS[2]], pool="none")
    np.testing.assert_allclose(vectors[offsets[2] : offsets[3]], alone.numpy(), rtol=1e-4, atol=1e-5)


def test_pooled_vector_is_the_mean_of_the_token_vectors(loaded: Translator) -> None:
    pooled, single = (embed_lines(loaded, TEXTS, pool) for pool in ("mean", "none"))
    for i, row in enumerate(pooled["embeddings"]):
        tokens = single["vectors"][single["offsets"][i] : single["offsets"][i + 1]]
        np.testing.assert_allclose(row, tokens.mean(0), rtol=1e-4, atol=1e-5)


def test_token_vector_depends_on_its_context(loaded: Translator) -> None:
    one, other = loaded.embed(["I love apples", "You love apples"], pool="none")
    assert not torch.allclose(one[-1], other[-1], atol=1e-3)  # the same word in another context


def test_windows_are_joined_in_order(loaded: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, progress = [*TEXTS, "We see dogs", "They want cats"], []
    whole = {pool: embed_lines(loaded, texts, pool) for pool in ("mean", "none")}
    monkeypatch.setattr(embedder, "WINDOW", 3)
    for pool, arrays in whole.items():
        for name, array in embed_lines(loaded, iter(texts), pool, progress.append).items():
            np.testing.assert_allclose(array, arrays[name], rtol=1e-4, atol=1e-5)
    assert progress == [3, 3, 1] * 2
    with pytest.raises(UserError, match="sentence 5"):
        embed_lines(loaded, ["I"] * 4 + ["\ud800"])


def test_input_may_be_compressed_json_standard_input_or_empty(
    tmp_path: Path, trained_run: Path, command: Command
) -> None:
    out = tmp_path / "out.npy"
    (tmp_path / "objects.jsonl.gz").write_bytes(gzip.compress(b'{"en": "I love apples"}\n'))
    assert (
        command("embed", trained_run, "--input", tmp_path / "objects.jsonl.gz", "--key", "en", "--out", out).code == 0
    )
    first = np.load(out)
    assert command("embed", trained_run, "--out", out, stdin=b"I love apples\n").code == 0
    np.testing.assert_array_equal(np.load(out), first)
    assert command("embed", trained_run, "--out", out, stdin=b"").out == f"{out}: embeddings 0 × 32\n"
    assert np.load(out).shape == (0, 32)


def test_invalid_arguments_are_rejected_and_files_unchanged(source: Path, trained_run: Path, command: Command) -> None:
    folder = source.parent
    old = folder / "old.npy"
    old.write_bytes(b"mine")
    (folder / "bad.en").write_bytes(b"I\n\xff\n")
    given = ("--input", source)
    cases: list[tuple[tuple[object, ...], str]] = [
        ((*given, "--out", old, "--pool", "none"), "old.npy: vectors of tokens need two arrays"),
        ((*given, "--out", old, "--pool", "max"), "mean (one vector per line) or none (one per token), not 'max'"),
        ((*given, "--out", folder / "out.csv"), "out.csv: the name must end in .npy or .safetensors"),
        ((*given, "--out", folder / "no" / "out.npy"), "existing folder"),
        ((*given, "--out", old, "--key", "x"), "only .jsonl and .parquet files have keys"),
        (("--input", folder / "none.en", "--out", old), "none.en does not exist"),
        (("--input", folder / "bad.en", "--out", old), "bad.en, line 2"),
        (given, "--out"),
    ]
    before = {path.name for path in folder.iterdir()}
    for words, message in cases:
        assert message in command("embed", trained_run, *words).error, words
    assert {path.name for path in folder.iterdir()} == before
    assert old.read_bytes() == b"mine"


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_file_is_written_atomically(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"out{suffix}"
    arrays = {"embeddings": np.ones((3, 2), np.float32)}
    save_arrays(arrays, path)
    (tmp_path / "other").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.save" if suffix == ".npy" else "safetensors.numpy.save_file", fail)
    with pytest.raises(UserError, match="cannot be written \\(No space left on device\\)"):
        save_arrays({"embeddings": np.zeros((3, 2), np.float32)}, path)
    assert path.read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, "other"}
