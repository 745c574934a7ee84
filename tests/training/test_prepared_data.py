"""Locks of the folders that several runs prepare and share."""

import multiprocessing
import threading
from pathlib import Path

from regard.training.prepared_data import lock_folder


def test_process_forked_under_a_lock_does_not_hold_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    end = context.Event()
    with lock_folder(tmp_path, lambda: None):
        child = context.Process(target=end.wait)
        child.start()
    waits: list[bool] = []

    def lock() -> None:
        with lock_folder(tmp_path, lambda: waits.append(True)):
            pass

    thread = threading.Thread(target=lock)
    thread.start()
    thread.join(60)
    end.set()
    child.join()
    thread.join()
    assert not waits
