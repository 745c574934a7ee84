"""Short runs on the built-in corpus with each training objective: BLEU and the quantity that the objective affects.

    python benchmarks/objectives.py [--steps 400] [--sentences 500] [--device cpu] [--jobs 1]

All runs have the same seed, data, steps and dropout; --jobs sets how many run at the same time. Writes
benchmarks/results/objectives.json and fails if an objective does not have its effect.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from harness import environment, save_result

from regard.data.builtin.corpus import Example, load_examples
from regard.data.text.encoding import link_tokens
from regard.evaluation.metrics import Score, bleu
from regard.inspection.probe import probe
from regard.masks import Padded
from regard.ops.dispatch import choose_device
from regard.pipelines.translator import Translator
from regard.training.objectives.guided_attention import aligned_prior, diagonal_prior
from regard.training.objectives.scheduled_sampling import ScheduledSampling
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe

WIDTH, LAYER, HEAD = 0.1, 1, 0
# Minimum share of the guided head's attention on the prior, and maximum share of the same head without guidance.
MIN_GUIDED, MAX_UNGUIDED = {"diagonal": 0.7, "alignments": 0.85}, {"diagonal": 0.6, "alignments": 0.75}
SCHEDULE_TOLERANCE = 0.02
CONSISTENCY: dict[str, tuple[str, Any]] = {"R-Drop": ("r_drop", 2.0), "SimCut": ("simcut", {"weight": 3.0, "p": 0.05})}
"""Method, key and value of the objectives that penalise the difference between two forward passes."""
MODEL = {
    "model.preset": "small",
    "model.width": 128,
    "model.heads": 8,
    "model.hidden": 512,
    "model.encoder_layers": 2,
    "model.decoder_layers": 2,
    "model.norm": "pre",
    "model.dropout": 0.1,
    "tokenizer.size": 2400,
    "optim.lr": 4e-3,
    "optim.schedule": "cosine",
    "optim.warmup": 100,
    "batch.tokens": 1536,
    "training.valid_sentences": 0,
    "training.log_every": 20,
    "search.beam": 1,
}


@dataclass
class Benchmark:
    """The folder of corpus and runs, training settings, and test sentences with their word alignments."""

    folder: Path
    steps: int
    device: str
    test: list[Example]
    links: list[list[tuple[int, int]]] = field(default_factory=list)

    def train(self, name: str, changes: dict[str, Any], threads: int) -> float:
        """Train with these changes to the settings and return the time in seconds."""
        torch.set_num_threads(threads)
        files = {f"data.{key}": str(self.folder / value) for key, value in FILES.items()}
        rest = {"training.steps": self.steps, "training.validate_every": self.steps, "training.device": self.device}
        print(f"== {name}")
        return run_recipe(load_recipe(None, [], MODEL | files | rest | changes), self.folder / name).seconds

    def train_all(self, runs: dict[str, dict[str, Any]], jobs: int) -> dict[str, tuple[Path, float]]:
        """Train all runs, `jobs` at a time in separate processes; return the folder and the seconds of each."""
        threads = max(1, (os.cpu_count() or 1) // jobs)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
            seconds = pool.map(self.train, runs, runs.values(), repeat(threads))
            return {name: (self.folder / name, taken) for name, taken in zip(runs, seconds, strict=True)}

    def score(self, run: Path) -> Score:
        """Return BLEU of greedy translations, without the spaces between Chinese words that alignments need."""
        translations = Translator.load(run / "last")([d.pair.source for d in self.test], beam=1)
        return bleu([text.replace(" ", "") for text in translations], [d.pair.target for d in self.test], "zh")

    @torch.no_grad()
    def attention_on_prior(self, run: Path, prior: str) -> float:
        """Return the share of the guided head's attention on a prior, over all guided test tokens."""
        translator = Translator.load(run / "last")
        name, source_vocabulary = f"decoder.{LAYER}.cross", translator.vocabularies.source
        total, count = 0.0, 0.0
        for example, links in zip(self.test, self.links, strict=True):
            source = source_vocabulary.encode(example.pair.source)
            target = translator.vocabularies.target.encode(" ".join(example.words))
            with probe(translator.model, [name]) as seen:
                translator.log_probs([source], [target])
            layouts = Padded.of([len(target) + 1]), Padded.of([len(source) + 1])
            if prior == "diagonal":
                allowed = diagonal_prior(*layouts, WIDTH)
            else:
                words = source_vocabulary.word_ids(source), translator.vocabularies.target.word_ids(target)
                tokens = torch.tensor(link_tokens(links, *words)).view(-1, 2)
                allowed = aligned_prior(*layouts, torch.nn.functional.pad(tokens, (1, 0)))
            guided = allowed.any(-1)
            total += float(((seen[name].weights[:, HEAD] * allowed).sum(-1) * guided).sum())
            count += float(guided.sum())
        return total / count

    @torch.no_grad()
    def dropout_divergence(self, run: Path) -> float:
        """Return the symmetric KL divergence per token between two forward passes with dropout, in nats."""
        model = Translator.load(run / "last").model.train()
        translator = Translator.load(run / "last")
        torch.manual_seed(0)
        total, count = 0.0, 0
        for example in self.test:
            source = translator.vocabularies.source.encode(example.pair.source)
            target = translator.vocabularies.target.encode(" ".join(example.words))
            inputs = torch.tensor([[*source, model.config.eos]]), torch.tensor([[model.config.bos, *target]])
            p, q = (model(*inputs)[0].log_softmax(-1) for _ in range(2))
            total += float(((p.exp() - q.exp()) * (p - q)).sum()) / 2
            count += len(target) + 1
        return total / count


FILES = {
    "source": "train.en",
    "target": "train.zh",
    "alignments": "train.align",
    "valid_source": "valid.en",
    "valid_target": "valid.zh",
}


def align_words(corpus: list[Example], statistics: list[Example]) -> list[list[tuple[int, int]]]:
    """Link each Chinese word to the English word with the highest Dice coefficient over `statistics`."""
    english, chinese, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for example in statistics:
        sources, targets = set(split_words(example.pair.source)), set(example.words)
        english.update(sources)
        chinese.update(targets)
        both.update((s, t) for s in sources for t in targets)

    def dice(s: str, t: str) -> float:
        return 2 * both[s, t] / (english[s] + chinese[t]) if both[s, t] else 0.0

    alignments = []
    for example in corpus:
        sources = split_words(example.pair.source)
        best = [max(range(len(sources)), key=lambda i, t=t: dice(sources[i], t)) for t in example.words]
        pairs = zip(best, enumerate(example.words), strict=True)
        alignments.append([(i, j) for i, (j, t) in pairs if dice(sources[i], t) > 0.3])
    return alignments


def split_words(english: str) -> list[str]:
    """Split at white space, lowercase, and strip final punctuation."""
    return [word.rstrip(".?").lower() for word in english.split()]


def write_corpus(folder: Path, sentences: int) -> tuple[list[Example], list[list[tuple[int, int]]]]:
    """Write training and validation text with alignments; return test sentences with their alignments."""
    train, test = load_examples("train"), load_examples("test")[:sentences]
    for split, examples in (("train", train), ("valid", load_examples("valid"))):
        (folder / f"{split}.en").write_text("".join(f"{d.pair.source}\n" for d in examples), encoding="utf-8")
        (folder / f"{split}.zh").write_text("".join(f"{' '.join(d.words)}\n" for d in examples), encoding="utf-8")
    lines = (" ".join(f"{i}-{j}" for i, j in links) for links in align_words(train, train))
    (folder / "train.align").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return test, align_words(test, train)


def sampling_curve(run: Path, settings: dict[str, Any]) -> list[dict[str, float]]:
    """Return, for each log entry, the share of sampled inputs and the share that the schedule prescribes."""
    probability = ScheduledSampling.parse(settings, "sampling").probability
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    curve, last_step = [], 0
    for entry in (entry for entry in entries if "loss" in entry):
        steps = range(last_step + 1, entry["step"] + 1)
        expected = sum(map(probability, steps)) / len(steps)
        curve.append({"step": entry["step"], "sampled": entry.get("sampled", 0.0), "schedule": expected})
        last_step = entry["step"]
    return curve


def trained_weights(run: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the optimizer, not their saved average."""
    checkpoint = run / "checkpoints" / (run / "checkpoints" / "last").read_text().strip()
    state = safetensors.torch.load_file(checkpoint / "state.safetensors")
    return {name: tensor for name, tensor in state.items() if name.startswith("model.")}


class Rows:
    """Rows of the result, one for each objective, and the objectives without effect."""

    def __init__(self, benchmark: Benchmark, runs: dict[str, tuple[Path, float]]) -> None:
        self.benchmark, self.runs = benchmark, runs
        self.rows: list[dict[str, Any]] = []
        self.missed: list[str] = []

    def add(
        self,
        run: str,
        method: str,
        settings: dict[str, Any],
        what: str = "",
        value: float | None = None,
        without: float | None = None,
        held: bool = True,
    ) -> None:
        """Add the BLEU of a run, and the value of a quantity with and without the objective."""
        folder, seconds = self.runs[run]
        self.rows.append(
            {
                "method": method,
                "settings": settings,
                "bleu": self.benchmark.score(folder).as_dict(),
                "seconds": round(seconds, 1),
                "what": what,
                "value": value,
                "without": without,
                "held": held,
            }
        )
        print(json.dumps(self.rows[-1], ensure_ascii=False))
        if not held:
            self.missed.append(f"{method}: {what} is {value}, without the objective {without}")


def measure(benchmark: Benchmark, jobs: int) -> Rows:
    """Train all runs and measure the effect of each objective."""
    steps = benchmark.steps
    sampling = {
        decay: {"decay": decay, "half_life": steps // 3, "start": steps // 8, "floor": 0.4}
        for decay in ("linear", "exponential", "inverse-sigmoid")
    }
    guides = {
        prior: {"prior": prior, "steps": steps, "width": WIDTH, "layers": [LAYER], "heads": [HEAD]}
        for prior in ("diagonal", "alignments")
    }
    runs = benchmark.train_all(
        {"plain": {}}
        | {name: {"objective.scheduled_sampling": settings} for name, settings in sampling.items()}
        | {name: {"objective.guided_attention": settings} for name, settings in guides.items()}
        | {name: {f"objective.{key}": value} for name, (key, value) in CONSISTENCY.items()}
        | {"ema": {"training.ema": 0.98}},
        jobs,
    )
    plain, rows = runs["plain"][0], Rows(benchmark, runs)
    rows.add("plain", "teacher forcing", {})
    for decay, settings in sampling.items():
        curve = sampling_curve(runs[decay][0], settings)
        error = max(abs(point["sampled"] - point["schedule"]) for point in curve)
        what = "largest distance between the share of predictions and its schedule"
        rows.add(decay, f"scheduled sampling, {decay}", settings, what, error, held=error < SCHEDULE_TOLERANCE)
        rows.rows[-1]["curve"] = curve
    for prior, settings in guides.items():
        value, without = (benchmark.attention_on_prior(run, prior) for run in (runs[prior][0], plain))
        minimum, maximum = MIN_GUIDED[prior], MAX_UNGUIDED[prior]
        what = f"share of the guided head's attention on the prior (at least {minimum}, otherwise at most {maximum})"
        held = value > minimum and without < maximum
        rows.add(prior, f"guided attention, {prior}", settings, what, value, without, held)
    without = benchmark.dropout_divergence(plain)
    what = "divergence of two forward passes, nats per token"
    for name, (key, settings) in CONSISTENCY.items():
        value = benchmark.dropout_divergence(runs[name][0])
        rows.add(name, name, {key: settings}, what, value, without, value < without)
    ema = runs["ema"][0]
    trained = trained_weights(ema)
    unchanged = all(torch.equal(trained[name], tensor) for name, tensor in trained_weights(plain).items())
    saved = safetensors.torch.load_file(ema / "last" / "model.safetensors")
    distance = sum(float((saved[n] - trained[f"model.{n}"]).square().sum()) for n in saved) ** 0.5
    what = "distance of the saved weights from the trained weights, which equal those of teacher forcing"
    rows.add("ema", "EMA", {"ema": 0.98}, what, distance, 0.0, unchanged and distance > 0)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="result file, instead of one in benchmarks/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        test, links = write_corpus(Path(folder), options.sentences)
        rows = measure(Benchmark(Path(folder), options.steps, options.device, test, links), options.jobs)
    result = {
        "what": f"the built-in corpus, {options.steps} steps, dropout 0.1, seed 1; {options.sentences} held-out "
        "sentences, greedy search",
        "rows": rows.rows,
        **environment(choose_device(options.device)),
    }
    save_result(result, options.out or "objectives")
    if rows.missed:
        sys.exit("missed: " + "; ".join(rows.missed))


if __name__ == "__main__":
    main()
