"""Decoding speed of non-autoregressive models, eager and with CUDA graphs, from tokens to tokens.

    python benchmarks/nat_decoding.py --device cuda [--precision bfloat16] [--tiny] [--out FILE]

The base model (vocabulary 32,000) has random weights, which do not affect the time; sources have 24 tokens. Outputs are
compared, too: in float32 they should be equal, except for near-ties. Without a GPU both variants run eagerly.
"""

import argparse
import random
from pathlib import Path
from statistics import median
from typing import Any

import torch
from harness import environment, measure_alternately, save_result

from regard.decoding.constraints import DecodingRequest
from regard.decoding.nat import NATGenerator
from regard.decoding.settings import NATSettings
from regard.models.nat import NATransformer, NATransformerConfig
from regard.ops.dispatch import choose_device

SEARCHES: dict[str, tuple[str, dict[str, Any]]] = {  # name: length model, search settings
    "classifier, one pass": ("classifier", {"iterations": 1}),
    "classifier, 4 iterations": ("classifier", {"iterations": 4}),
    "classifier, 4 iterations, 3 lengths": ("classifier", {"iterations": 4, "lengths": 3}),
    "end": ("end", {"iterations": 1}),
    "ctc, best path": ("ctc", {"iterations": 1}),
}
BATCHES = (1, 8, 32, 128)
TINY = {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "hidden": 64}


class EagerGenerator(NATGenerator):
    """A generator without CUDA graphs."""

    capture_devices = ()


def compare(model: NATransformer, batch: int, options: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Time and compare both variants on a batch of random sentences."""
    rng = random.Random(1)
    vocab = model.config.source_vocab
    requests = [DecodingRequest([rng.randrange(3, vocab) for _ in range(24)]) for _ in range(batch)]
    settings = NATSettings(**options)
    generators = {"eager": EagerGenerator(model), "captured": NATGenerator(model)}
    outputs = [
        [hypotheses[0].tokens for hypotheses in generator.generate(requests, settings)]
        for generator in generators.values()
    ]
    times = measure_alternately(
        {name: lambda g=generator: g.generate(requests, settings) for name, generator in generators.items()},
        device=generators["captured"].device,
        seconds=seconds,
        warm_up=2,
    )
    same = sum(one == other for one, other in zip(*outputs, strict=True))
    milliseconds = {f"{name}_ms": round(1000 * median(taken), 3) for name, taken in times.items()}
    return {"sentences": batch, "same_sentences": same} | milliseconds


def random_model(config: NATransformerConfig) -> NATransformer:
    """Return a model that predicts targets about as long as the sources."""
    model = NATransformer(config).eval().requires_grad_(False)
    if config.length == "classifier":
        for offset, logit in ((0, 9.0), (1, 8.0), (-1, 7.0)):
            model.length.bias[config.max_length_offset + offset] = logit
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--seconds", type=float, default=1.0, help="timing of each variant and batch size")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and small batches")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    results: dict[str, list[dict[str, Any]]] = {}
    for name, (length, options) in SEARCHES.items():
        torch.manual_seed(0)
        config = NATransformerConfig.base(100 if arguments.tiny else 32_000, length=length)
        config = config.changed(**TINY) if arguments.tiny else config
        model = random_model(config).to(device, getattr(torch, arguments.precision))
        results[name] = []
        for batch in BATCHES[:2] if arguments.tiny else BATCHES:
            results[name].append(compare(model, batch, options, arguments.seconds))
            print(f"{name}: {results[name][-1]}", flush=True)
    if arguments.out is not None:
        save_result({"precision": arguments.precision, "results": results, **environment(device)}, arguments.out)


if __name__ == "__main__":
    main()
