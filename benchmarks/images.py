"""Images per second: opened, decoded, stored, read back, augmented and rendered.

    python benchmarks/images.py mnist=FOLDER cifar10-jpg=FOLDER photos=FOLDER ... [--device cuda] [--size 32]

Each set is opened, decoded into a store in a temporary folder, and read back in random batches; every augmentation
preset is applied to batches of 256 on the device. Writes benchmarks/results/images-DEVICE.json.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import environment, measure_alternately, save_result

from regard.data.builtin.rendered_shapes import render_shapes
from regard.data.images.augmentation import Augmentation, AugmentationSettings
from regard.data.images.datasets import ImageDataset, StreamedImages
from regard.data.images.image_sets import ImageSettings, open_splits
from regard.data.images.image_store import open_image_store, write_image_store
from regard.data.images.preprocessing import Normalisation, Resize

BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help="NAME=PATH")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, help="image size; by default the shorter side of the first image")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    result = {
        "what": "images per second",
        "sets": [measure_set(*pair.split("=", 1), arguments.size) for pair in arguments.sets],
        "augmentation": [
            measure_augmentation(name, size, device) for size in (32, 224) for name in ("light", "strong")
        ],
        "shapes": per_second(lambda: render_shapes(2048, 0), 2048),
        **environment(device, "pillow"),
    }
    save_result(result, f"images-{device.type}")
    print(json.dumps(result, indent=1))


def measure_set(name: str, path: str, size: int | None) -> dict[str, Any]:
    start = time.perf_counter()
    images = open_splits(Path(path), ImageSettings(hold_out=0.1)).train
    open_seconds = time.perf_counter() - start
    resize = Resize(size or min(images.read(0).shape[:2]))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        skipped = write_image_store(Path(folder), images, resize, max_bad=0.01)
        store_seconds = time.perf_counter() - start
        return {
            "set": name,
            "images": len(images),
            "skipped": skipped,
            "size": resize.size,
            "open_seconds": round(open_seconds, 2),
            "store": round(len(images) / store_seconds),
            "read_stored": read(open_image_store(Path(folder)), 20 * BATCH),
            "read_streamed": read(StreamedImages(images, resize), 4 * BATCH),
        }


def read(dataset: ImageDataset, count: int) -> int:
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:count]
    return per_second(lambda: [dataset.take(indices) for indices in torch.split(order, BATCH)], len(order))


def measure_augmentation(preset: str, size: int, device: torch.device) -> dict[str, Any]:
    augment = Augmentation(AugmentationSettings(preset=preset), size, Normalisation((0.5,) * 3, (0.25,) * 3))
    images = torch.randint(0, 256, (BATCH, 3, size, size), dtype=torch.uint8, device=device)
    labels = torch.zeros(BATCH, dtype=torch.long, device=device)
    generator = torch.Generator().manual_seed(0)

    def run() -> None:
        augmented = augment(images, generator)
        if augment.settings.mixes:
            augment.mix(augmented, labels, 10, generator)

    return {"preset": preset, "size": size, "per_second": per_second(run, BATCH, device)}


def per_second(call: Callable[[], object], count: int, device: torch.device | str = "cpu") -> int:
    """The best of three calls, after a warm-up."""
    return round(count / min(measure_alternately({"": call}, device=device)[""]))


if __name__ == "__main__":
    main()
