"""API keys: hashes in a file, and so many requests a minute."""

import logging
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.serving.errors import Problem
from regard.serving.keys import Keys, make_key


def status(keys: Keys, key: str | None) -> int:
    try:
        keys.admit(key)
    except Problem as problem:
        return problem.status
    return 200


def test_only_a_key_of_the_file_is_let_in(tmp_path: Path) -> None:
    key, line = make_key("ann")
    path = tmp_path / "keys"
    path.write_text(f"# ours\n\n{line}", encoding="utf-8")
    keys = Keys.load(path)
    assert keys.admit(key) == "ann"
    assert [status(keys, wrong) for wrong in (None, "", "x", line.split()[1], "\ud800")] == [403] * 5
    assert key not in path.read_text()


def test_requests_a_minute_are_counted_a_key_and_come_back_with_time() -> None:
    now = [0.0]
    (a, line_a), (b, line_b) = make_key("a", 3), make_key("b", 3)
    keys = Keys({}, lambda: now[0])
    for line in (line_a, line_b):
        from regard.serving.keys import Holder

        keys._holders[line.split()[1]] = Holder(line.split()[0], 3)
    assert [status(keys, a) for _ in range(5)] == [200, 200, 200, 429, 429]
    assert status(keys, b) == 200
    with pytest.raises(Problem) as refused:
        keys.admit(a)
    wait = int(refused.value.headers["Retry-After"])
    assert wait == 20
    now[0] += wait
    assert [status(keys, a) for _ in range(2)] == [200, 429]


def test_a_new_reading_of_the_file_forgets_nobodys_requests(tmp_path: Path) -> None:
    key, line = make_key("a", 2)
    path = tmp_path / "keys"
    path.write_text(line)
    first = Keys.load(path)
    assert [status(first, key) for _ in range(3)] == [200, 200, 429]
    second = Keys.load(path)
    second.keep_counting(first)
    assert status(second, key) == 429


@pytest.mark.parametrize("line", ["ann", "ann abc 60", f"ann {'0' * 64}", f"ann {'0' * 64} 0", f"ann {'G' * 64} 5"])
def test_malformed_lines_are_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# first\n{line}\n")
    with pytest.raises(UserError, match="keys, line 2"):
        Keys.load(path)


def test_a_file_that_others_can_write_is_complained_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text(make_key("a")[1])
    logging.getLogger("regard.serving").propagate = True
    for mode, complaints in ((0o644, 0), (0o666, 1)):
        path.chmod(mode)
        caplog.clear()
        Keys.load(path)
        assert [record.getMessage() for record in caplog.records] == ["others can write keys"] * complaints


def test_a_key_that_stands_twice_or_a_missing_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(2 * make_key("a")[1])
    with pytest.raises(UserError, match="twice"):
        Keys.load(path)
    with pytest.raises(UserError, match="cannot be read"):
        Keys.load(tmp_path / "none")
    with pytest.raises(UserError, match="one word"):
        make_key("two words")
