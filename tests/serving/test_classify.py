"""Images over HTTP: what the classifier says of the same files, and bad ones refused alone."""

import asyncio
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from starlette.testclient import TestClient

from regard.errors import UserError
from regard.models.croco import CroCo, CroCoConfig
from regard.models.folder import save_model
from regard.pipelines.classifier import Classifier
from regard.serving.app import make_app
from regard.serving.config import Limits, ServingConfig
from regard.serving.messages import LoadRequest, Options
from regard.serving.metrics import Metrics
from regard.serving.model_runner import ClassificationEngine, open_engine
from regard.serving.served_models import Models
from regard.serving.service import Service
from tests.serving.running import Running, wait_until


class Threaded:
    """A worker whose engine is in this process."""

    def __init__(self, order: LoadRequest) -> None:
        self._engine = open_engine(order)
        self._engine.warm_up()
        self.about = self._engine.about

    async def run(self, operation: str, options: Options, items: Sequence[Any]) -> list[Any]:
        return await asyncio.to_thread(self._engine.run, operation, items, dict(options))

    def kill(self) -> None:
        pass

    async def stop(self) -> None:
        pass


@pytest.fixture(scope="module")
def client(image_run: Path) -> Iterator[TestClient]:
    async def start(order: LoadRequest) -> Threaded:
        return Threaded(order)

    orders, limits = [LoadRequest("paint", image_run, "cpu")], Limits(image_pixels=10_000, items=4, image_bytes=100_000)
    service = Service(ServingConfig(orders, limits=limits), Models(orders, limits, Metrics(), start))
    with TestClient(make_app(service)) as one:
        wait_until(lambda: service.ready or service.fatal)
        yield one


def test_answers_are_the_classifiers(client: TestClient, image_run: Path, painted: Path) -> None:
    classifier = Classifier.load(image_run)
    paths = [painted / "test" / colour / "004.png" for colour in ("red", "blue")]
    files = [("image", (path.name, path.read_bytes())) for path in paths]
    answer = client.post("/api/classify", files=files, data={"top": "2"}).json()
    assert answer["model"] == "paint"
    for image, path in zip(answer["images"], paths, strict=True):
        known = classifier(path, top=2)
        assert [one["name"] for one in image["classes"]] == [name for name, _ in known]
        assert [one["probability"] for one in image["classes"]] == pytest.approx(
            [share for _, share in known], abs=1e-4
        )
    body = paths[0].read_bytes()
    whole = client.post("/api/classify?top=2", content=body, headers={"content-type": "image/png"}).json()
    assert whole["images"] == answer["images"][:1]
    (model,) = client.get("/api/models").json()["models"]
    assert (model["operations"], model["classes"]) == (["classify"], list(classifier.classes))


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"some text", "a text file, not an image"),
        (png(200, 200), "more than the 10,000 pixels allowed"),
        (png(20, 20)[:48], "truncated or damaged"),
    ],
)
def test_bad_images_are_refused_in_a_sentence(content: bytes, said: str, client: TestClient) -> None:
    answer = client.post("/api/classify", content=content, headers={"content-type": "image/png"})
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_a_form_without_images_or_with_too_many_is_refused(client: TestClient) -> None:
    assert client.post("/api/classify", files={"photo": b"x"}).status_code == 400
    assert client.post("/api/classify", data={"top": "3"}).status_code == 400
    assert client.post("/api/classify", json={"image": "x"}).status_code == 400
    assert client.post("/api/classify", files=[("image", png(1, 1))] * 5).status_code == 400
    assert client.post("/api/classify", files={"image": png(1, 1)}, data={"top": "0"}).status_code == 400
    assert client.post("/api/classify", files={"image": bytes(100_001)}).status_code == 413


def test_a_model_of_images_is_not_asked_to_translate(client: TestClient) -> None:
    assert client.post("/translate", json={"q": "a", "source": "en", "target": "zh"}).status_code == 400
    assert client.post("/api/translate", json={"texts": "a"}).json() == {"error": "no model here can translate"}
    assert client.post("/api/embed", json={"texts": "a", "model": "paint"}).status_code == 400
    assert client.post("/detect", json={"q": "a"}).json() == {"error": "no model here translates"}
    assert client.get("/frontend/settings").status_code == 200


def test_a_worker_of_its_own_says_the_same(server: Running, image_run: Path, painted: Path) -> None:
    path = painted / "test" / "green" / "004.png"
    files = [("image", path.read_bytes()), ("image", path.read_bytes()[:60])]
    good, damaged = (httpx.post(f"{server.url}/api/classify", files=[file], timeout=60) for file in files)
    assert good.json()["model"] == "images"
    best = good.json()["images"][0]["classes"]
    known = Classifier.load(image_run)(path, top=5)
    assert [one["name"] for one in best] == [name for name, _ in known]
    assert [one["probability"] for one in best] == pytest.approx([share for _, share in known], abs=1e-4)
    assert (damaged.status_code, list(damaged.json())) == (400, ["error"])


def test_a_model_of_two_views_can_only_be_looked_at(tmp_path: Path) -> None:
    sizes = {"patch": 4, "width": 16, "heads": 2, "decoder_width": 16, "decoder_heads": 2}
    save_model(tmp_path, CroCo(CroCoConfig.micro(**sizes)), {})
    engine = open_engine(LoadRequest("x", tmp_path, "cpu"))
    assert not {"translate", "embed", "classify"} & set(engine.about.operations)
    with pytest.raises(UserError):
        engine.run("classify", [b""], {})


def test_engines_are_chosen_by_what_the_model_reads(image_run: Path) -> None:
    assert isinstance(open_engine(LoadRequest("x", image_run, "cpu")), ClassificationEngine)
    with pytest.raises(UserError, match="searches nothing"):
        open_engine(LoadRequest("x", image_run, "cpu", search={"beam": 1}))
