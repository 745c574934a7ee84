"""Models that write all tokens at once, pass by pass and by recorded programs: the time of a batch, tokens to tokens.

    python benchmarks/nat_decoding.py --device cuda [--precision bfloat16] [--tiny] [--out FILE]

Weights of the base model are random (32,000 words), which changes nothing about the time; sources have 24 tokens. What
both ways say is compared too: in float32 all of it should be the same, but where random weights leave a near-tie.
On a CPU nothing can be recorded: a rehearsal, with --tiny a short one.
"""

import argparse
import json
import random
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from regard.decoding.config import NATSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.nat import NATGenerator
from regard.decoding.search import TokenHypothesis
from regard.evaluation.bench.environment import describe_machine
from regard.models.nat import NATransformer, NATransformerConfig
from regard.runtime import choose_device

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "classifier, one pass": ("classifier", {"iterations": 1}),
    "classifier, 4 rounds": ("classifier", {"iterations": 4}),
    "classifier, 4 rounds of 3 lengths": ("classifier", {"iterations": 4, "lengths": 3}),
    "end": ("end", {"iterations": 1}),
    "ctc, best path": ("ctc", {"iterations": 1}),
}
BATCHES = (1, 8, 32, 128)
TINY = {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "hidden": 64}


def write(
    generator: NATGenerator, requests: list[DecodingRequest], settings: NATSettings
) -> list[list[TokenHypothesis]]:
    found = generator.generate(requests, settings)
    if generator.device.type == "cuda":
        torch.cuda.synchronize()
    return found


def milliseconds(
    generator: NATGenerator, requests: list[DecodingRequest], settings: NATSettings, seconds: float
) -> float:
    """The median time of a batch, after two that make ready."""
    times: list[float] = []
    for _ in range(2):
        write(generator, requests, settings)
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        write(generator, requests, settings)
        times.append(1000 * (time.perf_counter() - began))
    return round(median(times), 3)


def compare(model: NATransformer, count: int, given: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Both ways with one model and so many sentences."""
    draw = random.Random(1)
    requests = [
        DecodingRequest([draw.randrange(3, model.config.source_vocab) for _ in range(24)]) for _ in range(count)
    ]
    settings, result, said = NATSettings(**given), {}, []
    ways: dict[str, tuple[str, ...]] = {"pass_by_pass_ms": (), "recorded_ms": ("cpu", "cuda")}
    for name, devices in ways.items():
        NATGenerator.capture_devices = devices
        generator = NATGenerator(model)
        said.append([best[0].tokens for best in write(generator, requests, settings)])
        result[name] = milliseconds(generator, requests, settings, seconds)
    same = sum(one == other for one, other in zip(*said, strict=True))
    return {"sentences": count, "the_same": same} | result


def random_model(config: NATransformerConfig) -> NATransformer:
    """Guesses that targets are about as long as their sources."""
    model = NATransformer(config).eval().requires_grad_(False)
    if config.length == "classifier":
        for further, likely in ((0, 9.0), (1, 8.0), (-1, 7.0)):
            model.length.bias[config.max_length_offset + further] = likely
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each size of batch and way")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    results: dict[str, list[dict[str, Any]]] = {}
    for name, (length, given) in WAYS.items():
        torch.manual_seed(0)
        config = NATransformerConfig.base(32_000 if not arguments.tiny else 100, length=length)
        config = config.changed(**TINY) if arguments.tiny else config
        model = random_model(config).to(device, getattr(torch, arguments.precision))
        for count in BATCHES[:2] if arguments.tiny else BATCHES:
            found = compare(model, count, given, arguments.seconds)
            results.setdefault(name, []).append(found)
            print(f"{name}: {found}", flush=True)
    if arguments.out is not None:
        result = {"machine": describe_machine(device), "precision": arguments.precision, "results": results}
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
