"""`regard key` appends keys that the server accepts."""

from pathlib import Path

from regard.serving.keys import Keys
from tests.conftest import Command


def test_created_keys_are_accepted_by_the_server(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "keys"
    first = command("key", "ada", "--file", path, "--per-minute", 7)
    second = command("key", "bob", "--file", path)
    assert (first.code, second.code) == (0, 0)
    keys = Keys.load(path)
    holders = [keys.admit(result.out.removesuffix("\n")) for result in (first, second)]
    assert [(holder.name, holder.per_minute) for holder in holders] == [("ada", 7), ("bob", 600)]
    assert len(keys) == 2


def test_nothing_is_appended_to_a_damaged_file(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "keys"
    path.write_text("ada\n")
    assert f"{path}, line 1: expected a name" in command("key", "bob", "--file", path).error
    assert path.read_text() == "ada\n"
    assert "No such file" in command("key", "bob", "--file", tmp_path / "missing" / "keys").error
