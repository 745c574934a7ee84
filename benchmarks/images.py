"""How many images a second are opened, decoded, stored, read back, augmented and rendered.

    python benchmarks/images.py mnist=FOLDER cifar10-jpg=FOLDER photos=FOLDER ... [--device cuda] [--size 32]

Each set is opened, decoded into a store in a temporary folder, and read back in random batches; every preset of
augmentation changes batches of 256 on the device. Writes benchmarks/results/images-DEVICE.json.
"""

import argparse
import datetime
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL
import torch

from regard.data.builtin.shapes import render_shapes
from regard.data.images.augmentation import Augmentation, AugmentationSettings, Normalisation
from regard.data.images.datasets import ImageDataset, Resize, StreamedImages
from regard.data.images.image_sets import ImageSettings, open_splits
from regard.data.images.store import open_image_store, write_image_store

BATCH = 256
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="+", help="NAME=PATH")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, help="what images are brought to; by default, the first one's shorter side")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    result = {
        "what": "images a second",
        "sets": [measure_set(*pair.split("=", 1), arguments.size) for pair in arguments.sets],
        "augmentation": [
            measure_augmentation(name, size, device) for size in (32, 224) for name in ("light", "strong")
        ],
        "shapes": per_second(lambda: render_shapes(2048, 0), 2048),
        "command": f"python benchmarks/images.py {' '.join(p.split('=')[0] for p in arguments.sets)}",
        "machine": machine(device),
        "versions": {"torch": torch.__version__, "pillow": PIL.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    path = RESULTS / f"images-{device.type}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


def measure_set(name: str, path: str, size: int | None) -> dict[str, Any]:
    began = time.perf_counter()
    images = open_splits(Path(path), ImageSettings(hold_out=0.1)).train
    opened = time.perf_counter() - began
    frame = Resize(size or min(images.read(0).shape[:2]))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        left_out = write_image_store(Path(folder), images, frame, max_bad=0.01)
        stored = time.perf_counter() - began
        return {
            "set": name,
            "images": len(images),
            "left_out": left_out,
            "size": frame.size,
            "open_seconds": round(opened, 2),
            "store": round(len(images) / stored),
            "read_stored": read(open_image_store(Path(folder)), 20 * BATCH),
            "read_streamed": read(StreamedImages(images, frame), 4 * BATCH),
        }


def read(pictures: ImageDataset, count: int) -> int:
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))[:count]
    return per_second(lambda: [pictures.take(indices) for indices in torch.split(order, BATCH)], len(order))


def measure_augmentation(preset: str, size: int, device: torch.device) -> dict[str, Any]:
    augment = Augmentation(AugmentationSettings(preset=preset), size, Normalisation((0.5,) * 3, (0.25,) * 3))
    images = torch.randint(0, 256, (BATCH, 3, size, size), dtype=torch.uint8, device=device)
    labels = torch.zeros(BATCH, dtype=torch.long, device=device)
    generator = torch.Generator().manual_seed(0)

    def work() -> None:
        changed = augment(images, generator)
        if augment.settings.mixes:
            augment.mix(changed, labels, 10, generator)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return {"preset": preset, "size": size, "per_second": per_second(work, BATCH)}


def per_second(work: Callable[[], object], count: int) -> int:
    """The best of three times, after one that does not count."""
    work()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return round(count / min(times))


def machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
