"""Readers: line ends, encodings, compression, formats, and errors that name file and line."""

import gzip
import json
import lzma
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from regard.data.text.readers import (
    Pair,
    find_shards,
    read_jsonl,
    read_lines,
    read_pairs,
    read_parallel,
    read_parquet,
    read_tsv,
)
from regard.errors import UserError


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def compress(content: bytes, suffix: str) -> bytes:
    match suffix:
        case ".gz":
            return gzip.compress(content)
        case ".xz":
            return lzma.compress(content)
        case _:
            return content


def error_of(items: Iterator[object]) -> str:
    with pytest.raises(UserError) as raised:
        list(items)
    return str(raised.value)


# Lines


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    sentences = ["a\u2028b", "c\x0bd\x0ce", "f\x85g\x1ch", "i\rj", ""]
    path = write(tmp_path / "a.txt", "\n".join(sentences) + "\n")
    assert list(read_lines(path)) == sentences


def test_one_carriage_return_before_the_newline_is_dropped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a\r\nb\r\r\nc\r")
    assert list(read_lines(path)) == ["a", "b\r", "c"]


def test_a_last_line_without_newline_is_read(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path / "a.txt", "a\nb"))) == ["a", "b"]


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\ufeffa\n\ufeffb\n")
    assert list(read_lines(path)) == ["a", "\ufeffb"]


def test_a_file_with_only_a_byte_order_mark_has_no_lines(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path / "a.txt", "\ufeff"))) == []


def test_invalid_utf8_is_rejected_with_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"fine\nalso\xe2\x80\xa8fine\nna\xefve\n")
    lines = read_lines(path)
    assert list(islice(lines, 2)) == ["fine", "also\u2028fine"]
    assert f"{path}, line 3: byte 3 " in error_of(lines)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_recognised(tmp_path: Path, encoding: str) -> None:
    message = error_of(read_lines(write(tmp_path / "a.txt", "One\nnaïve\n".encode(encoding))))
    assert "looks like UTF-16; save it as UTF-8" in message


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_compressed_text_is_read(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.txt{suffix}", compress("Übung\n練習\n".encode(), suffix))
    assert list(read_lines(path)) == ["Übung", "練習"]


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_truncated_compressed_text_is_rejected_with_its_name(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.txt{suffix}", compress(b"some text\n" * 100, suffix)[:-6])
    assert str(path) in error_of(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_damaged_compressed_text_is_rejected_with_its_name(tmp_path: Path, suffix: str) -> None:
    content = bytearray(compress("".join(map(str, range(5000))).encode(), suffix))
    content[len(content) // 2] ^= 0xFF
    path = write(tmp_path / f"a.txt{suffix}", bytes(content))
    assert f"{path} is damaged" in error_of(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_plain_text_with_a_compression_suffix_is_rejected_with_its_name(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.txt{suffix}", "plain text\n")
    assert re.search(rf"{re.escape(str(path))} is (damaged or not compressed|truncated)", error_of(read_lines(path)))


def test_zstandard_text_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "a.txt.zst"
    with pyarrow.output_stream(str(path), compression="zstd") as stream:
        stream.write("Übung\n練習\n".encode())
    assert list(read_lines(path)) == ["Übung", "練習"]
    truncated = write(tmp_path / "b.txt.zst", path.read_bytes()[:-2])
    assert str(truncated) in error_of(read_lines(truncated))


def test_zstandard_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path / "a.txt.zst", b"")
    message = error_of(read_lines(path))
    assert str(path) in message
    assert "pip install 'regard[data]'" in message


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.xz"])
def test_a_missing_file_is_rejected_with_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert f"{path} does not exist" in error_of(read_lines(path))


@pytest.mark.parametrize("name", ["a", "a.gz", "a.xz"])
def test_a_directory_is_rejected_with_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir()
    assert f"{path} is a directory" in error_of(read_lines(path))


def test_a_file_that_cannot_be_read_is_rejected_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a\n") / "inside"
    assert f"{path} cannot be read" in error_of(read_lines(path))


def test_a_line_beyond_the_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.files.MAX_LINE_BYTES", 5)
    path = write(tmp_path / "a.txt", "four\nfive!\n")
    assert f"{path}, line 2" in error_of(read_lines(path))


# Two line files


def test_line_files_are_paired_line_by_line(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", "one\n\ntwo\n"), write(tmp_path / "a.de", "eins\nnull\nzwei")
    assert list(read_pairs(source, target)) == [Pair("one", "eins"), Pair("", "null"), Pair("two", "zwei")]


@pytest.mark.parametrize(("source_count", "target_count"), [(2, 5), (5, 2), (0, 1), (3, 2)])
def test_files_of_different_length_are_rejected_with_both_counts(
    tmp_path: Path, source_count: int, target_count: int
) -> None:
    source, target = write(tmp_path / "a.en", "x\n" * source_count), write(tmp_path / "a.de", "y\n" * target_count)
    pairs = read_pairs(source, target)
    assert len(list(islice(pairs, min(source_count, target_count)))) == min(source_count, target_count)
    assert f"{source} has {source_count} lines but {target} has {target_count}" in error_of(pairs)


# Tab-separated files


def test_columns_of_a_tsv_file_are_selected_by_index(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'id\t"one\teins"\n\t\t\n')
    assert list(read_tsv(path)) == [Pair("id", '"one'), Pair("", "")]
    assert list(read_tsv(path, 2, 1)) == [Pair('eins"', '"one'), Pair("", "")]


@pytest.mark.parametrize("header", ["en\tzh", "Source\tTarget", "src\tzh-CN", "English \tChinese", "text.en\ttext.de"])
def test_the_header_of_a_tsv_file_is_not_a_pair(tmp_path: Path, header: str) -> None:
    path = write(tmp_path / "a.tsv", f"\ufeff{header}\nen\tzh\nb\tB\n")
    assert list(read_tsv(path)) == [Pair("en", "zh"), Pair("b", "B")], "only the first line can be a header"
    assert find_shards(path)[0].header() == Pair(*header.split("\t"))


@pytest.mark.parametrize("line", ["no\tnein", "Source\tQuelle", "en\ten", "Is it?\tIst es?", "\t"])
def test_a_pair_is_not_taken_for_a_header(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "a.tsv", f"{line}\nb\tB\n")
    assert list(read_tsv(path)) == [Pair(*line.split("\t")), Pair("b", "B")]
    assert find_shards(path)[0].header() is None


def test_columns_of_a_header_are_the_selected_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "id\tde\ten\n1\tHund\tdog\n")
    assert list(read_tsv(path, 2, 1)) == [Pair("dog", "Hund")]
    assert find_shards(path, columns=(2, 1))[0].header() == Pair("en", "de")
    assert list(read_tsv(path, 1, 1)) == [Pair("de", "de"), Pair("Hund", "Hund")], "a single column has no header"


def test_too_few_columns_are_rejected_with_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "a\tb\nc\n")
    assert f"{path}, line 2: has 1 column separated by tabs, but column 1 is needed" in error_of(read_tsv(path))


def test_a_negative_column_is_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "a\tb\n")
    assert "counted from 0" in error_of(read_tsv(path, 0, -1))


def test_blank_lines_at_the_end_are_ignored(tmp_path: Path) -> None:
    assert list(read_tsv(write(tmp_path / "a.tsv", "a\tb\n\n  \r\n\n"))) == [Pair("a", "b")]
    assert list(read_jsonl(write(tmp_path / "a.jsonl", '{"source": "a", "target": "b"}\n\n'))) == [Pair("a", "b")]


def test_blank_lines_in_the_middle_are_rejected_with_the_line(tmp_path: Path) -> None:
    assert ", line 2: " in error_of(read_tsv(write(tmp_path / "a.tsv", "a\tb\n\n\nc\td\n")))
    row = '{"source": "a", "target": "b"}'
    assert ", line 3: " in error_of(read_jsonl(write(tmp_path / "a.jsonl", f"{row}\n{row}\n\n{row}\n")))


# JSON lines


def test_keys_of_a_jsonl_file_are_selected_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"en": "one", "de": "eins\\n\\ud83d\\ude00", "id": 7}\n')
    assert list(read_jsonl(path, "en", "de")) == [Pair("one", "eins\n😀")]


def test_a_dot_selects_a_nested_key_unless_the_key_itself_contains_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"translation": {"en": "one", "de": "eins"}, "a.b": "two"}\n')
    assert list(read_jsonl(path, "translation.en", "translation.de")) == [Pair("one", "eins")]
    assert list(read_jsonl(path, "a.b", "translation.de")) == [Pair("two", "eins")]
    assert 'the key "translation.fr" is missing' in error_of(read_jsonl(path, "translation.fr", "a.b"))
    assert 'the key "a.b.c" is missing' in error_of(read_jsonl(path, "a.b.c", "a.b"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"source": "a"}', 'the key "target" is missing'),
        ('{"source": 3, "target": "b"}', 'the value of "source" has type int'),
        ('{"source": "a", "target": null}', 'the value of "target" has type NoneType'),
        ('{"source": "a\\ud800", "target": "b"}', 'the value of "source" contains a lone surrogate (\\ud800)'),
    ],
)
def test_a_bad_row_is_rejected_with_the_line(tmp_path: Path, line: str, problem: str) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"source": "a", "target": "b"}}\n{line}\n')
    assert f"{path}, line 2: {problem}" in error_of(read_jsonl(path))


# All formats


@pytest.mark.parametrize("name", ["a.tsv", "a.TSV", "a.tsv.gz", "a.v2.tsv.xz"])
def test_the_suffix_selects_the_tsv_reader(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, compress(b"one\teins\t1\n", Path(name).suffix))
    assert list(read_parallel(path, columns=(1, 0))) == [Pair("eins", "one")]


def test_the_suffix_selects_the_jsonl_reader(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", gzip.compress(json.dumps({"en": "one", "de": "eins"}).encode()))
    assert list(read_parallel(path, keys=("en", "de"))) == [Pair("one", "eins")]


def test_two_files_are_read_as_lines(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", "one\n"), write(tmp_path / "a.de.gz", gzip.compress(b"eins\n"))
    assert list(read_parallel(source, target)) == [Pair("one", "eins")]


def test_a_single_line_file_is_rejected_at_the_call() -> None:
    with pytest.raises(
        UserError, match=r"corpus\.txt\.gz is given without a target file.*\.tsv, \.jsonl, \.tmx or \.xlf"
    ):
        read_parallel(Path("corpus.txt.gz"))


def test_a_target_next_to_a_file_with_both_sides_is_rejected_at_the_call() -> None:
    with pytest.raises(UserError, match=r"a\.tsv\.gz .*contains both sides"):
        read_parallel(Path("a.tsv.gz"), Path("b.txt"))


def test_an_empty_corpus_is_rejected_with_its_name(tmp_path: Path) -> None:
    source, target, table = (write(tmp_path / name, "") for name in ("a.en", "a.de", "a.tsv"))
    assert f"{source} and {target}" in error_of(read_parallel(source, target))
    assert str(table) in error_of(read_parallel(table))


def test_pairs_with_an_empty_side_are_yielded(tmp_path: Path) -> None:
    assert list(read_parallel(write(tmp_path / "a.tsv", "\teins\ntwo\t\n"))) == [Pair("", "eins"), Pair("two", "")]


# Parquet


def write_parquet(path: Path, columns: dict[str, list[object]], **options: object) -> Path:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def test_parquet_columns_are_read_from_all_row_groups(tmp_path: Path) -> None:
    texts = [f"Satz {i}" for i in range(20_000)]
    path = write_parquet(
        tmp_path / "a.parquet", {"de": texts, "id": [*range(20_000)], "en": texts[::-1]}, row_group_size=7_000
    )
    assert list(read_parquet(path, "en", "de")) == [Pair(*pair) for pair in zip(texts[::-1], texts, strict=True)]


def test_a_dot_selects_a_field_of_a_struct_column(tmp_path: Path) -> None:
    rows: list[object] = [{"en": "one", "de": {"formal": "eins"}}, {"en": "two", "de": {"formal": "zwei"}}]
    path = write_parquet(tmp_path / "a.parquet", {"translation": rows, "en": ["x", "y"]})
    pairs = list(read_parquet(path, "translation.en", "translation.de.formal"))
    assert pairs == [Pair("one", "eins"), Pair("two", "zwei")]


def test_a_missing_column_is_rejected_with_the_existing_columns(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"en": ["one"], "meta": [{"de": "eins"}]})
    assert f'{path} has no column "de"; it has en, meta.de' in error_of(read_parquet(path, "en", "de"))


def test_columns_without_text_and_nulls_are_rejected(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"en": ["one", "two"], "de": ["eins", None], "id": [1, 2]})
    assert 'the column "id" has type int64' in error_of(read_parquet(path, "en", "id"))
    assert f'{path}, row 2: the value of "de" is null' in error_of(read_parquet(path, "en", "de"))


def test_an_invalid_parquet_file_is_rejected_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    content = write_parquet(tmp_path / "a.parquet", {"source": ["one"] * 99, "target": ["eins"] * 99}).read_bytes()
    for damaged in (b"", b"plain text\n", content[:-9]):
        path = write(tmp_path / "b.parquet", damaged)
        assert f"{path} is damaged or not a Parquet file" in error_of(read_parquet(path))
    assert "does not exist" in error_of(read_parquet(tmp_path / "c.parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'regard[data]'" in error_of(read_parquet(path))


# Folders


def test_shards_of_a_folder_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_parquet(tmp_path / "2.parquet", {"source": ["c"], "target": ["C"]})
    write(tmp_path / "1.jsonl.gz", gzip.compress(b'{"source": "b", "target": "B"}\n'))
    write(tmp_path / "0.tsv", "a\tA\n")
    write(tmp_path / "README.md", "not a shard")
    write(tmp_path / ".hidden.tsv", "x\tX\n")
    assert [Path(shard.name).name for shard in find_shards(tmp_path)] == ["0.tsv", "1.jsonl.gz", "2.parquet"]
    assert list(read_parallel(tmp_path)) == [Pair("a", "A"), Pair("b", "B"), Pair("c", "C")]


def test_an_error_in_a_folder_names_the_shard_and_the_line(tmp_path: Path) -> None:
    write(tmp_path / "0.tsv", "a\tA\n")
    write(tmp_path / "1.tsv", "b\tB\nc\n")
    assert f"{tmp_path / '1.tsv'}, line 2: " in error_of(read_parallel(tmp_path))


def test_a_folder_without_shards_is_rejected_at_the_call(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "a\n")
    with pytest.raises(UserError, match=r"is a folder without \.tsv, \.jsonl, \.parquet, \.tmx, \.xlf, \.xliff files"):
        read_parallel(tmp_path)
