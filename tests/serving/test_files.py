"""Translation of documents by the server: LibreTranslate's endpoints, limits, keys, and hostile files."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from regard.data.documents.formats import FORMATS
from regard.data.documents.segment_translation import SentenceRequest
from regard.data.text.tokenizer import Tokenizer
from regard.serving import files
from regard.serving.app import make_app
from regard.serving.config import Limits, ServingConfig
from regard.serving.errors import ApiError, bad_request, overloaded
from regard.serving.file_store import FileStore
from regard.serving.keys import make_key
from regard.serving.messages import LoadRequest, Translation
from regard.serving.served_models import ServedModels
from regard.serving.service import Service
from regard.serving.telemetry import Metrics
from tests.asynchronous import VirtualClock
from tests.data.documents.office import OFFICE_FILES, members
from tests.data.documents.test_hostile import CASES
from tests.full_disk import full_disk
from tests.serving.conftest import FakeWorker
from tests.serving.server_process import wait_until

SUBTITLES = b"1\n00:00:01,000 --> 00:00:02,000\n<i>one two</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n42\n"


@contextmanager
def open_client(tokenizer: Tokenizer, limits: dict[str, Any] | None = None, **options: Any) -> Iterator[Any]:
    """Start an app with a fake worker, which translates into capital letters."""
    worker = FakeWorker(tokenizer)

    async def start_worker(request: LoadRequest) -> FakeWorker:
        return worker

    requests = [LoadRequest("en-zh", Path("en-zh"))]
    config = ServingConfig(requests, limits=Limits(**(limits or {})), **options)
    service = Service(config, ServedModels(requests, config.limits, Metrics(), start_worker))
    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        wait_until(lambda: service.ready)
        client.worker, client.service = worker, service
        yield client


@pytest.fixture(scope="module")
def client(tokenizer: Tokenizer) -> Iterator[Any]:
    with open_client(tokenizer, {"file_expanded": 50_000_000}) as client:
        yield client


def send(client: Any, data: bytes = SUBTITLES, name: str = "talk.srt", **fields: str) -> Any:
    form = {"source": "en", "target": "zh", **fields}
    return client.post("/translate_file", data=form, files={"file": (name, data)})


def download(client: Any, response: Any) -> Any:
    assert response.status_code == 200, response.text
    return client.get(urlsplit(response.json()["translatedFileUrl"]).path)


def test_a_file_is_translated_and_downloaded(client: Any) -> None:
    response = send(client)
    body = response.json()
    assert (body["segments"], body["sentences"], body["placed"]) == (2, 1, 0)
    assert body["untranslated"] == [{"where": "cue 2", "text": "42", "reason": "no words"}]
    assert body["translatedFileUrl"].startswith("http://testserver/download_file/")
    file = download(client, response)
    assert file.content == SUBTITLES.replace(b"one two", b"ONE TWO")
    assert file.headers["content-type"] == "application/x-subrip"
    assert file.headers["content-disposition"] == 'attachment; filename="talk_zh.srt"'
    assert file.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", OFFICE_FILES)
def test_office_files_are_translated(client: Any, name: str) -> None:
    data = OFFICE_FILES[name]()
    file = download(client, send(client, data, name))
    assert members(file.content).keys() == members(data).keys()
    assert file.content != data


def test_settings_list_the_formats(client: Any) -> None:
    settings = client.get("/frontend/settings").json()
    assert settings["filesTranslation"] is True
    assert settings["frontendTimeout"] == 500  # in LibreTranslate's page: milliseconds of silence before it translates
    assert {".txt", ".docx", ".odt", ".srt", ".html"} <= set(settings["supportedFilesFormat"])
    assert len(settings["supportedFilesFormat"]) == sum(len(format.suffixes) for format in FORMATS.values())


def test_the_source_language_is_detected(client: Any) -> None:
    assert download(client, send(client, source="auto")).content == SUBTITLES.replace(b"one two", b"ONE TWO")
    assert send(client, target="fr").json()["error"].startswith("fr is not supported")


def test_files_are_converted_to_the_other_script_of_chinese(client: Any) -> None:
    memory = b'<tmx version="1.4"><header srclang="en"/><body><tu>'
    memory += b'<tuv xml:lang="en"><seg>one</seg></tuv>%s</tu></body></tmx>'
    for fields in ({}, {"model": "en-zh"}):
        response = send(client, memory % b"", "a.tmx", target="zt", **fields)
        assert response.json()["translatedFileUrl"].endswith(".a_zt.tmx")
        assert download(client, response).content == memory % b'<tuv xml:lang="zh-Hant"><seg>ONE</seg></tuv>'
        assert client.worker.options[-1]["languages"] == ("en", "zt")
    filled = memory % b'<tuv xml:lang="zh-CN"><seg>x</seg></tuv><tuv xml:lang="zh-TW"><seg></seg></tuv>'
    assert download(client, send(client, filled, "a.tmx", target="zt")).content == filled.replace(
        b"<seg></seg>", b"<seg>ONE</seg>"
    )
    assert send(client, source="zh", target="zt").json()["error"].startswith("zt is not available as a target language")


def test_a_column_and_a_key_are_selected(client: Any) -> None:
    file = download(client, send(client, b"a,b\none,two\n", "x.csv", column="b"))
    assert file.content == b"a,b\none,TWO\n"
    file = download(client, send(client, b'{"a": "one two", "b": "three four"}', "x.json", key="b"))
    assert file.content == b'{"a": "one two", "b": "THREE FOUR"}'


@pytest.mark.parametrize("case", CASES)
def test_hostile_files_are_rejected_in_one_sentence(client: Any, case: str) -> None:
    name, data, message = CASES[case]
    response = send(client, data, name)
    too_large = "when it is expanded" in message
    assert response.status_code == (413 if too_large else 400), response.text
    assert message in response.json()["error"]
    assert "\n" not in response.json()["error"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "a.exe"}, "a.exe: is no document that can be translated; the formats are txt, md"),
        ({"name": "a.csv"}, "a.csv: name the column to translate (--column)"),
        ({"data": b""}, None),
        ({"name": "../../etc/passwd"}, "is no document"),
        ({"source": ""}, "Invalid request: missing source parameter"),
        ({"job": "x"}, "Invalid request: job: string should match pattern"),
    ],
)
def test_wrong_requests_are_rejected(client: Any, fields: dict[str, Any], message: str | None) -> None:
    response = send(client, **fields)
    if message is None:
        assert response.status_code == 200
        return
    assert (response.status_code, message in response.json()["error"]) == (400, True), response.text


def test_half_a_character_in_an_untranslated_text_is_replaced(client: Any) -> None:
    response = send(client, rb'{"a": "\ud800 word"}', "a.json")
    assert response.json()["untranslated"] == [{"where": "$.a", "text": "? word", "reason": "lone surrogate"}]


def test_requests_without_a_file_are_rejected(client: Any) -> None:
    form = {"source": "en", "target": "zh"}
    assert client.post("/translate_file", json=form).json()["error"].startswith("Invalid request: send a form")
    missing = client.post("/translate_file", files={"other": ("a.txt", b"x")}, data=form)
    assert missing.json() == {"error": "Invalid request: missing file parameter"}
    assert client.get("/download_file/x.txt").status_code == 404
    assert client.get("/download_file/..%2f..%2fetc%2fpasswd").status_code == 404
    assert client.get("/api/files/unknown-job").json() == {"done": 0, "total": 0}


def test_limits_of_files(tokenizer: Tokenizer) -> None:
    limits = {"file_bytes": 1000, "file_segments": 3, "file_characters": 40}
    with open_client(tokenizer, limits) as client:
        assert send(client, b"one\n" * 4, "a.txt").json()["error"].endswith("exceeds segment limit (3)")
        assert send(client, b"one " * 15, "a.txt").json()["error"].endswith("exceeds character limit (40)")
        assert send(client, b"x" * 1001, "a.txt").status_code == 413
        assert send(client, b"x" * 30_000, "a.txt").status_code == 413
        assert send(client, b"one\n" * 3, "a.txt").status_code == 200


def test_files_need_a_key_and_are_charged_by_their_size(tokenizer: Tokenizer, tmp_path: Path) -> None:
    key, line = make_key("ann", per_minute=10)
    path = tmp_path / "keys"
    path.write_text(line)
    with open_client(tokenizer, {"characters": 10}, keys=path) as client:
        assert send(client).status_code == 403
        assert (
            send(client, b"one two three\n" * 6, "a.txt", api_key=key).status_code == 200
        )  # 78 characters: 8 requests
        assert send(client, api_key=key).status_code == 200
        assert send(client, api_key=key).status_code == 200
        assert send(client, api_key=key).status_code == 429


def test_progress_and_the_number_of_files_at_once(tokenizer: Tokenizer) -> None:
    with open_client(tokenizer, {"files": 2}) as client:
        seen: list[Any] = []

        def look(items: object) -> None:
            progress = client.service.files.progress["job-12345"]
            seen.append((progress.done, progress.total, client.service.files._running.total()))

        client.worker.before = look
        words = ["one", "two", "three", "four"]
        text = "".join(f"{words[i % 4]} {words[i // 4 % 4]} {words[i // 16 % 4]}\n" for i in range(40)).encode()
        assert send(client, text, "a.txt", job="job-12345").status_code == 200
        assert {(0, 40, 1), (16, 40, 1), (32, 40, 1)} == set(seen)
        assert client.get("/api/files/job-12345").json() == {"done": 0, "total": 0}
        with client.service.files.take_slot("testclient"):
            response = send(client)
        assert (response.status_code, response.headers["retry-after"]) == (429, "5")


def test_other_clients_take_turns_and_a_full_queue_is_tried_again(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:

    failures = [overloaded("full", 1), overloaded("full", 1)]
    run = client.service.run

    async def run_later(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await run(*arguments)

    monkeypatch.setattr(files, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(client.service, "run", run_later)
    assert download(client, send(client)).content == SUBTITLES.replace(b"one two", b"ONE TWO")
    assert failures == []
    client.worker.batches.clear()
    assert send(client, b"one two\n" * 200, "a.txt").status_code == 200
    assert max(map(len, client.worker.batches)) <= files.SENTENCES


@pytest.mark.parametrize(
    ("errors", "deadline", "status", "attempts"),
    [
        ([overloaded("full", 1)] * 2, 60, 0, [0, 2, 4]),
        ([overloaded("full", 1)] * 99, 5, 504, [0, 2, 4]),
        ([bad_request("no")], 60, 400, [0]),
    ],
)
def test_a_full_queue_is_tried_again_until_the_deadline(
    errors: list[ApiError], deadline: float, status: int, attempts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, times, remaining = VirtualClock(), list[float](), iter(errors)
    monkeypatch.setattr(files, "time", clock)

    async def run(request: object, model: object, jobs: list[str], seconds: float) -> list[list[Translation]]:
        times.append(clock.now)
        assert seconds == deadline - clock.now
        if (error := next(remaining, None)) is not None:
            raise error
        return [[Translation(job.upper(), 0.0)] for job in jobs]

    service: Any = SimpleNamespace(run=run, limits=Limits(file_seconds=deadline))
    builder = SimpleNamespace(translation_job=lambda text, options: text)
    model: Any = SimpleNamespace(job_builder=builder, info=SimpleNamespace(engine="regard"))
    request: Any = None
    requests = [SentenceRequest("one"), SentenceRequest("two")]
    translation = files._translate_sentences(request, service, model, requests, (), deadline)
    if status:
        with pytest.raises(ApiError) as error:
            clock.run(translation)
        assert error.value.status == status
        assert (status == 504) == (f"no answer within {deadline} seconds" in error.value.message)
    else:
        assert [one.text for one in clock.run(translation)] == ["ONE", "TWO"]
    assert times == attempts


def test_files_expire_and_the_oldest_are_removed() -> None:
    now = [0.0]
    store = FileStore(Limits(file_keep=10, file_storage=10), clock=lambda: now[0])
    first = store.add("a b/ü\\x?.txt", "zh", b"1234")
    assert first.endswith(".x__zh.txt")
    found = store.find(first)
    assert found is not None
    assert found.path.read_bytes() == b"1234"
    second, third = store.add("b.txt", "zh", b"1234"), store.add("c.txt", "zh", b"1234")
    assert [store.find(name) is not None for name in (first, second, third)] == [False, True, True]
    assert not found.path.exists()
    now[0] = 11.0
    assert [store.find(name) for name in (second, third)] == [None, None]
    folder = found.path.parent
    assert list(folder.iterdir()) == []
    store.add("large.txt", "zh", b"x" * 100)
    store.close()
    assert not folder.exists()


def test_a_full_disk_is_reported_and_a_removed_folder_is_created_again(client: Any) -> None:
    stored = client.service.files.find(urlsplit(send(client).json()["translatedFileUrl"]).path.rpartition("/")[2])
    folder = stored.path.parent
    before = set(folder.iterdir())
    large = b"one two\n" * 200_000  # received in a temporary file
    with full_disk(100):
        assert send(client, large, "a.txt").json() == {"error": "the request cannot be stored (File too large)"}
        refused = send(client, SUBTITLES * 2)
    assert refused.json() == {"error": "the translated document cannot be stored (File too large)"}
    assert (refused.status_code, refused.headers["X-Error"]) == (503, "reason=unavailable")
    assert set(folder.iterdir()) == before
    address = urlsplit(send(client).json()["translatedFileUrl"]).path
    shutil.rmtree(folder)
    assert client.get(address).status_code == 404
    assert download(client, send(client)).content == SUBTITLES.replace(b"one two", b"ONE TWO")


def test_the_log_has_no_names_of_files(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    send(client, name="secret-name.srt")
    assert "secret-name" not in caplog.text
