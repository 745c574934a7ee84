"""API keys: the key file and rate limits."""

import logging
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.serving.errors import ApiError
from regard.serving.keys import KeyHolder, Keys, make_key


def status(keys: Keys, key: str | None) -> int:
    try:
        keys.admit(key)
    except ApiError as error:
        return error.status
    return 200


def test_only_keys_of_the_file_are_admitted(tmp_path: Path) -> None:
    key, line = make_key("ann")
    path = tmp_path / "keys"
    path.write_text(f"# comment\n\n{line}", encoding="utf-8")
    keys = Keys.load(path)
    assert keys.admit(key).name == "ann"
    assert [status(keys, wrong) for wrong in (None, "", "x", line.split()[1], "\ud800")] == [403] * 5
    assert key not in path.read_text()


def test_rate_limit_is_per_key_and_recovers_with_time() -> None:
    now = [0.0]
    (key_a, line_a), (key_b, line_b) = make_key("a", 3), make_key("b", 3)
    holders = {line.split()[1]: KeyHolder(line.split()[0], 3) for line in (line_a, line_b)}
    keys = Keys(holders, lambda: now[0])
    assert [status(keys, key_a) for _ in range(5)] == [200, 200, 200, 429, 429]
    assert status(keys, key_b) == 200
    with pytest.raises(ApiError) as rejected:
        keys.admit(key_a)
    wait = int(rejected.value.headers["Retry-After"])
    assert wait == 20
    now[0] += wait
    assert [status(keys, key_a) for _ in range(2)] == [200, 429]


def test_reloading_keeps_the_used_requests(tmp_path: Path) -> None:
    key, line = make_key("a", 2)
    path = tmp_path / "keys"
    path.write_text(line)
    first = Keys.load(path)
    assert [status(first, key) for _ in range(3)] == [200, 200, 429]
    second = Keys.load(path)
    second.copy_usage(first)
    assert status(second, key) == 429


@pytest.mark.parametrize("line", ["ann", "ann abc 60", f"ann {'0' * 64}", f"ann {'0' * 64} 0", f"ann {'G' * 64} 5"])
def test_malformed_lines_are_rejected_with_their_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# comment\n{line}\n")
    with pytest.raises(UserError, match="keys, line 2"):
        Keys.load(path)


@pytest.mark.parametrize(("mode", "warnings"), [(0o644, 0), (0o666, 1)])
def test_file_that_others_can_write_causes_a_warning(
    mode: int, warnings: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text(make_key("a")[1])
    path.chmod(mode)
    logging.getLogger("regard.serving").propagate = True
    Keys.load(path)
    assert [record.getMessage() for record in caplog.records] == ["key file is writable by others"] * warnings


def test_duplicate_keys_missing_files_and_invalid_names_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(2 * make_key("a")[1])
    with pytest.raises(UserError, match="keys, line 2: duplicate key"):
        Keys.load(path)
    with pytest.raises(UserError, match="none: no such file"):
        Keys.load(tmp_path / "none")
    with pytest.raises(UserError, match="use a single word"):
        make_key("two words")
