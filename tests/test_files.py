"""Files of any origin are read in bounded time and memory, or rejected with one sentence."""

import io
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.config import parse_yaml
from regard.errors import MAX_MESSAGE, UserError
from regard.files import (
    MAX_DEPTH,
    MissingFileError,
    check_regular,
    describe_file,
    is_unchanged,
    open_regular,
    parse_json,
    read_bytes,
    read_json,
    read_raw_lines,
    read_text,
    replace_text_file,
    sha256_of,
)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is a pipe, but must be a regular file"),
    "directory": (Path.mkdir, "is a directory, but must be a regular file"),
    "socket": (make_socket, "is a socket, but must be a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device, but must be a regular file"),
    "link to itself": (lambda path: path.symlink_to(path), r"cannot be read \(.*symbolic links"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_only_regular_files_are_opened(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    make, message = SPECIAL[kind]
    path = Path("x")
    make(path)
    for read in (check_regular, read_bytes, read_text, read_json, lambda path: open_regular(path).__enter__()):
        with pytest.raises(UserError, match=f"x: {message}"):
            read(path)


def test_names_with_a_null_character_are_rejected() -> None:
    with pytest.raises(UserError, match="a file name cannot contain a null character"):
        check_regular(Path("a\0b"))


def test_links_to_regular_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("[1]")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_json(tmp_path / "link") == [1]


def test_null_character_in_a_path_is_reported() -> None:
    with pytest.raises(UserError, match=r"'a\\x00b': a file name cannot contain a null character"):
        read_bytes(Path("a\0b"))


def test_checksum_is_that_of_the_contents(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256_of(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_file_is_unchanged_if_size_and_checksum_are(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    described = describe_file(path)
    assert is_unchanged(path, described)
    for content in (b"abd", b"abcd", b""):
        path.write_bytes(content)
        assert not is_unchanged(path, described)
    path.write_bytes(b"abc")
    for other in (None, 3, {}, {"bytes": 3}, described | {"bytes": 4}):
        assert not is_unchanged(path, other)


def test_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "none" / "inside"):
        with pytest.raises(MissingFileError, match="no such file") as error:
            read_bytes(path)
        assert error.value.path == path and str(path) in str(error.value)


def test_large_file_is_rejected_without_reading_it(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match=r"sparse: has 1,099,511,627,776 bytes, but .* at most 268,435,456"):
        read_json(tmp_path / "sparse")
    (tmp_path / "four").write_bytes(b"1234")
    assert read_bytes(tmp_path / "four", limit=4) == b"1234"
    with pytest.raises(UserError, match="at most 3"):
        read_bytes(tmp_path / "four", limit=3)


def test_line_breaks_are_normalised_and_invalid_bytes_located(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("é\r\nb\rc\n".encode())
    assert read_text(tmp_path / "text") == "é\nb\nc\n"
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"latin: damaged or not UTF-8 text \(byte 4\)"):
        read_text(tmp_path / "latin")
    assert read_text(tmp_path / "latin", errors="replace") == "caf\ufffd"


def test_long_lines_are_rejected_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.files.MAX_LINE_BYTES", 4)
    assert list(read_raw_lines(io.BytesIO(b"abc\n\nd"), "input")) == [b"abc\n", b"\n", b"d"]
    with pytest.raises(UserError, match="input, line 2: longer than"):
        list(read_raw_lines(io.BytesIO(b"abc\nabcd\n"), "input"))


# JSON


def nested(depth: int) -> str:
    return '{"a": [' * (depth // 2) + "]}" * (depth // 2)


def test_json_is_parsed_up_to_a_depth() -> None:
    assert parse_json('{"a": [1, null, 1.5, "é"]}') == {"a": [1, None, 1.5, "é"]}
    parse_json(nested(MAX_DEPTH))
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse_json(nested(MAX_DEPTH + 2))
    with pytest.raises(ValueError, match="nested"):
        parse_json(nested(200_000))


@pytest.mark.parametrize("content", ["", "{", "[1,]", "9" * 5000, '{"a": "\\ud800"}', "[" * 10**5], ids=len)
def test_invalid_json_is_rejected_by_name(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match=r"x\.json: damaged or not JSON \(.+\)$"):
        read_json(tmp_path / "x.json")


def test_escaped_characters_in_json_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('["\\ud83d\\ude00"]')
    assert read_json(tmp_path / "x.json") == ["😀"]


# YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 3e-4", {"a": 3e-4}),
        ("[1e5, .5E3, -2e+3, 1_000.5, 1.5, 1.]", [1e5, 500.0, -2000.0, 1000.5, 1.5, 1.0]),
        ("[12, 0x1F, -3, yes, off, null, ~]", [12, 31, -3, True, False, None, None]),
        ("[12e, ., e5, 1.2.3, 0-0]", ["12e", ".", "e5", "1.2.3", "0-0"]),
        ("a: 2024-01-31", {"a": "2024-01-31"}),
        ("a: 2024-13-45", {"a": "2024-13-45"}),
        ("a: 2001-12-14t21:59:43.10-05:00", {"a": "2001-12-14t21:59:43.10-05:00"}),
        ("a: &x {b: 1}\nc: {<<: *x, d: 2}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
        ("[&x [1], *x, *x]", [[1], [1], [1]]),
        ("", None),
    ],
)
def test_yaml_has_the_types_of_json(text: str, value: Any) -> None:
    assert parse_yaml(text) == value


def bomb(line: str) -> str:
    """Return YAML of ten lines whose aliases expand to 9^10 values."""
    rows = [line.format(name="b0", inner="x: 1" if "{{" in line else ", ".join("1" * 9))]
    for level in range(1, 10):
        rows.append(line.format(name=f"b{level}", inner=", ".join([f"*b{level - 1}"] * 9)))
    return "\n".join(rows)


LISTS = bomb("{name}: &{name} [{inner}]")
MERGES = "b0: &b0 {x: 1}\n" + "\n".join(
    f"b{level}: &b{level} {{<<: [{', '.join([f'*b{level - 1}'] * 9)}]}}" for level in range(1, 10)
)
INVALID_YAML = {
    "bool": ("x: 1\na: !!bool maybe", "line 2: 'maybe' is not a valid value of type bool"),
    "int": ("a: !!int abc", "'abc' is not a valid value of type int"),
    "empty int": ("a: !!int ''", "'' is not a valid value of type int"),
    "float": ("a: !!float x", "'x' is not a valid value of type float"),
    "number of 5,000 digits": (f"a: {'9' * 5000}", "is not a valid value of type int"),
    "binary": ("a: !!binary x", "constructor for the tag"),
    "explicit date": ("a: !!timestamp 2024-01-01", "constructor for the tag"),
    "python": ("a: !!python/object/apply:os.system [x]", "constructor for the tag"),
    "set": ("a: !!set {b}", "constructor for the tag"),
    "unhashable key": ("? [a]\n: 1", "unhashable key"),
    "repeated key": ("model:\n  width: 8\n  width: 9\n", "line 3: 'width' is given twice"),
    "merge of a number": ("<<: 3", "merging"),
    "undefined alias": ("a: *b", "undefined alias 'b'"),
    "unclosed": ("a: [1,\n", "line 2"),
    "nested lists": ("- " * 3000, "nested too deeply"),
    "nested brackets": ("[" * 80 + "]" * 80, "nested more than 64 levels deep"),
    "nested mappings": ("".join("  " * level + "a:\n" for level in range(100)), "nested more than 64 levels deep"),
    "list in itself": ("&a [*a]", "nested more than 64 levels deep"),
    "alias bomb": (LISTS, "more than 16,384 values, aliases included"),
    "bomb of two lines": (
        f"a: &a [{','.join('1' * 8000)}]\nb: [{','.join(['*a'] * 8000)}]",
        "more than 16,384 values, aliases included",
    ),
    "bomb of merges": (MERGES, "more than 16,384 values, aliases included"),
    "long": ("# " + "x" * 2**17, "longer than 131,072 characters"),
    "control character": ("a: \0", "special characters are not allowed"),
    "two documents": ("a: 1\n---\nb: 2", "another document"),
}


@pytest.mark.parametrize("case", INVALID_YAML)
def test_invalid_yaml_is_rejected_with_its_line(case: str) -> None:
    text, message = INVALID_YAML[case]
    with pytest.raises(ValueError) as error:
        parse_yaml(text)
    assert message in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 300


def test_keys_may_replace_merged_ones() -> None:
    text = "a: {b: &b {x: 1, y: 2}, c: &c {<<: *b, x: 3}}\nd: {<<: *c, y: 4}"
    assert parse_yaml(text) == {"a": {"b": {"x": 1, "y": 2}, "c": {"x": 3, "y": 2}}, "d": {"x": 3, "y": 4}}


def test_long_rows_of_digits_take_linear_time() -> None:
    assert parse_yaml(f"a: {'1' * 120_000}x") == {"a": "1" * 120_000 + "x"}
    assert parse_yaml(f"a: {'1_' * 60_000}x") == {"a": "1_" * 60_000 + "x"}


def test_long_messages_are_cut() -> None:
    assert str(UserError("x" * MAX_MESSAGE)) == "x" * MAX_MESSAGE
    assert str(UserError("x" * 10**6)) == "x" * MAX_MESSAGE + "…"


def test_replaced_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replace_text_file(path) as file:
        file.write("new")
        _ = 1 / 0
    assert path.read_text() == "old"
    with replace_text_file(path) as file:
        file.write("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.txt"]
    message = r"cannot be written \(No such file or directory\)"
    with pytest.raises(UserError, match=message), replace_text_file(tmp_path / "missing" / "out.txt"):
        pass
