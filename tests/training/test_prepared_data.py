"""Locks of the folders that several runs prepare and share."""

import fcntl
import multiprocessing
import os
import signal
from pathlib import Path

from regard.training import prepared_data
from regard.training.prepared_data import lock_folder


def is_locked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def lock_and_fork(folder: Path, ready: int, end: int) -> None:
    """Lock a folder, start a process that waits for a byte, and sleep."""
    with lock_folder(folder, lambda: None):
        if not os.fork():
            os.write(ready, b"x")
            os.read(end, 1)
            os._exit(0)
        signal.pause()


def test_process_that_outlives_a_killed_run_does_not_hold_its_lock(tmp_path: Path) -> None:
    (ready, write_ready), (read_end, end) = os.pipe(), os.pipe()
    run = multiprocessing.get_context("fork").Process(target=lock_and_fork, args=(tmp_path, write_ready, read_end))
    run.start()
    os.read(ready, 1)
    try:
        assert is_locked(tmp_path)
        run.kill()
        run.join()
        assert not is_locked(tmp_path)
    finally:
        os.write(end, b"x")
        for descriptor in (ready, write_ready, read_end, end):
            os.close(descriptor)


def test_lock_is_released_although_a_process_still_has_a_copy_of_its_descriptor(tmp_path: Path) -> None:
    with lock_folder(tmp_path, lambda: None):
        copies = [os.dup(descriptor) for descriptor in prepared_data._locked_folders]
        assert copies and is_locked(tmp_path)
    assert not is_locked(tmp_path)
    for copy in copies:
        os.close(copy)


def test_store_in_the_folder_of_its_own_run_does_not_wait_for_the_lock_of_the_run(tmp_path: Path) -> None:
    waiting: list[Path] = []
    with lock_folder(tmp_path, lambda: waiting.append(tmp_path)):
        with lock_folder(tmp_path, lambda: waiting.append(tmp_path)):  # waited forever
            assert is_locked(tmp_path)
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path) and not waiting
