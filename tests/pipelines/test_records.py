"""Output files with complete records."""

import signal
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.pipelines.records import AlignedRecordFiles, RecordFile, count_aligned, count_lines
from regard.runtime import Interrupted, Interruptions


def test_aligned_files_have_the_same_number_of_records(tmp_path: Path) -> None:
    paths = (tmp_path / "source", tmp_path / "target")
    with pytest.raises(UserError, match="target already exists"):
        paths[1].write_text("mine\n")
        with AlignedRecordFiles(paths, Interruptions()):
            pytest.fail("an existing file was opened")
    assert not paths[0].exists()
    paths[1].unlink()
    with (
        pytest.raises(Interrupted),
        Interruptions() as interruptions,
        AlignedRecordFiles(paths, interruptions) as files,
    ):
        append = files._files[0].append
        files._files[0].append = lambda record: (append(record), signal.raise_signal(signal.SIGINT))
        files.append("a\n", "b\n")
    assert [path.read_text() for path in paths] == ["a\n", "b\n"]
    paths[0].write_text("a\nc\ne\n")  # as a killed process may leave it
    paths[1].write_text("b\nd")
    with AlignedRecordFiles(paths, Interruptions(), count_aligned(paths)) as files:
        assert files.count == 1
        files.append("C\n", "D\n")
    assert [path.read_text() for path in paths] == ["a\nC\n", "b\nD\n"]


def test_complete_records_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1\n22\n333\n4")
    assert [count_lines(path), count_lines(path, 2), count_lines(path, 3), count_lines(path, 4)] == [
        (3, 9),
        (1, 5),
        (1, 9),
        (0, 0),
    ]
    assert count_lines(path, most=2) == (2, 5)


def test_incomplete_record_is_removed_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "output"
    with pytest.raises(Interrupted), Interruptions() as interruptions, RecordFile(path, interruptions) as output:
        output.append("complete\n")
        assert path.read_text() == "complete\n"
        path.write_text("complete\ninc")
        raise Interrupted(signal.SIGINT)
    assert path.read_text() == "complete\n"
    assert f"interrupted after 1 lines; {path} has the translations of 1 lines" in output.explain_interruption()
    empty = tmp_path / "empty"
    with pytest.raises(ZeroDivisionError), RecordFile(empty, Interruptions()) as output:
        _ = 1 / 0
    assert not empty.exists()
    assert output.explain_interruption() == "interrupted after 0 lines"
