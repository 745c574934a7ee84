"""The requests in the documentation, sent with curl and `regard translate` to a running server."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.data.documents.office import letter_docx
from tests.images import COLOURS, paint
from tests.serving.server_process import ServerProcess
from tests.test_package import BLOCK, PAGES, commands, page_name

ADDRESS = "http://127.0.0.1:5000"
REQUESTS = [
    pytest.param(line, output, id=f"{page_name(page)}: {line[:50]}")
    for page in PAGES
    for _, info, body in BLOCK.findall(page.read_text("utf-8"))
    if info == "console"
    for line, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.M)
    if line.startswith("curl ") or " --server " in line
]


def test_every_page_with_requests_is_found() -> None:
    found = {parameter.id.partition(": ")[0] for parameter in REQUESTS if parameter.id}
    pages = ("serving", *(f"guides/{name}" for name in ("confidence", "documents", "photographs")))
    assert found == {f"docs/{folder}{page}.md" for page in pages for folder in ("", "zh/")}


@pytest.mark.parametrize(("line", "output"), REQUESTS)
def test_request_of_a_page_has_the_documented_response(
    line: str, output: str, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("news.en").write_text("I love apples\nYou see dogs\n", "utf-8")
    shutil.copy(next(paint(Path("photos"), 1, 1, classes={"red": COLOURS["red"]}).rglob("*.png")), "holiday.jpg")
    Path("letter.docx").write_bytes(letter_docx())
    line = line.replace(ADDRESS, server.url)
    if line.startswith("curl "):
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        curl = ["curl", "--silent", "--fail", *shlex.split(line)[1:]]
        done = subprocess.run(curl, capture_output=True, encoding="utf-8", timeout=300)
        assert done.returncode == 0, done
        assert done.stdout.startswith("{")
        assert output in ("", f"{done.stdout}\n")
        return
    (words,) = commands(f"$ {line}")
    assert command(*words).code == 0
    assert len(Path(words[-1]).read_text("utf-8").splitlines()) == 2
