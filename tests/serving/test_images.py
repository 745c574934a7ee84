"""Image classification over HTTP."""

import asyncio
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("fastapi")

from PIL import Image
from starlette.testclient import TestClient

from regard.inspection.probe import probe
from regard.pipelines.classifier import Classifier
from regard.serving.app import make_app
from regard.serving.config import Limits, ServingConfig
from regard.serving.messages import LoadRequest, Options
from regard.serving.model_runner import load_runner
from regard.serving.served_models import ServedModels
from regard.serving.service import Service
from regard.serving.telemetry import Metrics
from tests.asynchronous import run_in_thread
from tests.serving.server_process import ServerProcess, wait_until
from tests.serving.test_page_data import unpack


class ThreadWorker:
    """A worker that runs the model in a thread of this process."""

    alive = True

    def __init__(self, request: LoadRequest) -> None:
        self._runner = load_runner(request)
        self._runner.warm_up()
        self.info = self._runner.info

    async def run(self, operation: str, options: Options, items: Sequence[Any]) -> list[Any]:
        return await asyncio.to_thread(self._runner.run, operation, items, dict(options))

    def kill(self) -> None:
        pass

    async def stop(self) -> None:
        pass


@pytest.fixture(scope="module")
def client(image_run: Path) -> Iterator[TestClient]:
    async def start_worker(request: LoadRequest) -> ThreadWorker:
        return ThreadWorker(request)

    requests = [LoadRequest("paint", image_run, "cpu")]
    limits = Limits(image_pixels=10_000, request_pixels=15_000, items=4, image_bytes=100_000)
    service = Service(ServingConfig(requests, limits=limits), ServedModels(requests, limits, Metrics(), start_worker))
    with TestClient(make_app(service)) as client:
        wait_until(lambda: service.ready or service.fatal_error)
        client.service = service
        yield client


def test_classes_equal_the_classifiers(client: TestClient, image_run: Path, painted: Path) -> None:
    classifier = Classifier.load(image_run)
    paths = [painted / "test" / colour / "004.png" for colour in ("red", "blue")]
    files = [("image", (path.name, path.read_bytes())) for path in paths]
    response = client.post("/api/classify", files=files, data={"top": "2"}).json()
    assert response["model"] == "paint"
    for image, path in zip(response["images"], paths, strict=True):
        check_classes(image, classifier(path, top=2))
    headers = {"content-type": "image/png"}
    single = client.post("/api/classify?top=2", content=paths[0].read_bytes(), headers=headers).json()
    assert single["images"] == response["images"][:1]
    (model,) = client.get("/api/models").json()["models"]
    assert (model["operations"], model["classes"]) == (["classify"], list(classifier.classes))


def check_classes(image: dict[str, Any], expected: Sequence[tuple[str, float]]) -> None:
    assert [one["name"] for one in image["classes"]] == [name for name, _ in expected]
    probabilities = [one["probability"] for one in image["classes"]]
    assert probabilities == pytest.approx([probability for _, probability in expected], abs=1e-4)


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"some text", "a text file, not an image"),
        (png(200, 200), "exceeds pixel limit"),
        (png(20, 20)[:48], "truncated or damaged"),
    ],
)
def test_invalid_images_are_rejected_with_a_message(content: bytes, message: str, client: TestClient) -> None:
    response = client.post("/api/classify", content=content, headers={"content-type": "image/png"})
    assert response.status_code == 400
    assert message in response.json()["error"]


def test_forms_without_images_or_with_too_many_are_rejected(client: TestClient) -> None:
    assert client.post("/api/classify", files={"photo": b"x"}).status_code == 400
    assert client.post("/api/classify", data={"top": "3"}).status_code == 400
    assert client.post("/api/classify", json={"image": "x"}).status_code == 400
    assert client.post("/api/classify", files=[("image", png(1, 1))] * 5).status_code == 400
    assert client.post("/api/classify", files={"image": png(1, 1)}, data={"top": "0"}).status_code == 400
    assert client.post("/api/classify", files={"image": bytes(100_001)}).status_code == 413


def test_pixels_of_all_images_are_limited(client: TestClient) -> None:
    assert client.post("/api/classify", files=[("image", png(100, 75))] * 2).status_code == 200
    too_many = client.post("/api/classify", files=[("image", png(100, 75))] * 3)
    message = "Invalid request: request (22500) exceeds pixel limit (15000)"
    assert (too_many.status_code, too_many.json()) == (400, {"error": message})
    assert "reason=pixels" in too_many.headers["x-error"]


def test_large_images_make_small_batches(client: TestClient) -> None:
    images = [png(100, 75), png(10, 10), b"damaged"]
    assert run_in_thread(client.service.measure_images(images)) == [1, 1, 1]
    service = Service(ServingConfig([]))
    assert run_in_thread(service.measure_images([png(1000, 1000), png(5000, 5000)])) == [11, 251]


def test_image_model_does_not_translate(client: TestClient) -> None:
    assert client.post("/translate", json={"q": "a", "source": "en", "target": "zh"}).status_code == 400
    assert client.post("/api/translate", json={"texts": "a"}).json() == {"error": "no model supports translate"}
    assert client.post("/api/embed", json={"texts": "a", "model": "paint"}).status_code == 400
    assert client.post("/detect", json={"q": "a"}).json() == {"error": "no model supports translate"}
    assert client.get("/frontend/settings").status_code == 200


def test_worker_process_returns_the_same_classes(server: ServerProcess, image_run: Path, painted: Path) -> None:
    path = painted / "test" / "green" / "004.png"
    files = [("image", path.read_bytes()), ("image", path.read_bytes()[:60])]
    valid, damaged = (httpx.post(f"{server.url}/api/classify", files=[file], timeout=300) for file in files)
    assert valid.json()["model"] == "images"
    check_classes(valid.json()["images"][0], Classifier.load(image_run)(path, top=5))
    assert (damaged.status_code, list(damaged.json())) == (400, ["error"])


def post_image(client: TestClient, path: str, image: Path, **fields: object) -> httpx.Response:
    data = {key: str(value) for key, value in fields.items()}
    return client.post(f"/api/inspect/{path}", files=[("image", (image.name, image.read_bytes()))], data=data)


def test_heads_of_an_image_equal_the_recorded_weights(client: TestClient, image_run: Path, painted: Path) -> None:
    classifier = Classifier.load(image_run)
    file = painted / "test" / "red" / "004.png"
    with probe(classifier.model) as records:
        classifier(file)
    name = list(records)[-1]
    weights = records[name].weights[0].numpy()
    content, arrays = unpack(post_image(client, "image_attention", file).content)
    assert [view["name"] for view in content["views"]] == list(records)
    assert arrays[name][-1] == pytest.approx(weights.mean(0), abs=0.01)
    content, arrays = unpack(post_image(client, "image_map", file, name=name, head=1).content)
    assert content["rows"] == content["columns"]
    assert content["rows"][:2] == ["0,0", "0,1"]  # without a class token
    assert arrays["map"] == pytest.approx(weights[1], abs=1e-4)
    content, arrays = unpack(post_image(client, "image_map", file, name=name, every_head=True).content)
    assert arrays["map"] == pytest.approx(weights, abs=1e-4)
    _, arrays = unpack(post_image(client, "image_arithmetic", file, name=name, head=1, query=2).content)
    assert arrays["weights"] == pytest.approx(weights[1, 2], abs=1e-5)
    assert arrays["products"] == pytest.approx(arrays["k"] @ arrays["q"], rel=1e-3, abs=1e-4)
    assert post_image(client, "image_map", file, name=name, head=99).status_code == 400
    error = post_image(client, "image_map", file, name=name, quantity="scores").json()["error"]
    assert "the scores of different heads are not comparable and have no mean; choose a head" in error
    assert post_image(client, "image_arithmetic", file, name=name, head=0, query=999).status_code == 400


def test_switching_off_heads_changes_the_classes(client: TestClient, image_run: Path, painted: Path) -> None:
    file = painted / "test" / "red" / "004.png"
    heads = post_image(client, "image_change", file).json()["heads"]
    factors = {name: dict.fromkeys(range(count), 0) for name, count in heads.items()}
    result = post_image(client, "image_change", file, factors=json.dumps(factors)).json()
    check_classes({"classes": result["original"]}, Classifier.load(image_run)(file))
    assert result["changed"] != result["original"]
    assert post_image(client, "image_change", file, factors="{").status_code == 400


def test_map_of_a_window_has_the_labels_of_its_patches(swin_run: Path, painted: Path) -> None:
    runner = load_runner(LoadRequest("windows", swin_run, "cpu"))
    request = {"image": (painted / "test" / "red" / "004.png").read_bytes(), "pixels": 10_000, "patch": 7}
    request |= {"name": "stages.0.blocks.0.attention", "head": None, "quantity": "weights", "every_head": False}
    content, arrays = unpack(runner.run("image_map", [request], {})[0])
    assert content["rows"] == ["0,6", "0,7", "1,6", "1,7"]  # the window at the top right of 8 × 8 patches
    assert arrays["map"].sum(1) == pytest.approx(np.ones(4), abs=1e-3)
