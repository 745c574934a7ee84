"""Short runs on the built-in corpus that show what each teaching method does: BLEU, and the figure that it is meant to
move, with it and without it.

    python benchmarks/objectives.py [--steps 400] [--sentences 500] [--device cpu] [--jobs 1]

Every run has the same seed, data, steps and dropout; `--jobs` of them go at once. Writes
benchmarks/results/teaching.json and exits with an error where a method does not do what it says.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import platform
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

from regard.attention.masks import Padded
from regard.data.builtin.corpus import Example, load_examples
from regard.data.text.encoding import link_tokens
from regard.evaluation import Score, bleu
from regard.inspection.probe import probe
from regard.pipelines.translator import Translator
from regard.training.objectives.guided_attention import aligned_prior, diagonal_prior
from regard.training.objectives.objective import symmetric_kl
from regard.training.objectives.scheduled_sampling import SamplingSettings, ScheduledSampling
from regard.training.recipe import Recipe
from regard.training.run import run_recipe

RESULTS = Path(__file__).parent / "results" / "teaching.json"
WIDTH, LAYER, HEAD = 0.1, 1, 0
# The share of the guided head's attention that must fall on the prior, and that the same head must not reach unguided.
GUIDED, UNGUIDED = {"diagonal": 0.7, "alignments": 0.85}, {"diagonal": 0.6, "alignments": 0.75}
MIX_TOLERANCE = 0.02
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
class Bench:
    """The corpus on disk, what is measured on, and where the runs go."""

    folder: Path
    steps: int
    device: str
    test: list[Example]
    links: list[list[tuple[int, int]]] = field(default_factory=list)

    def train(self, name: str, changes: dict[str, Any], threads: int) -> float:
        """Trains a run with these changes to the settings; returns its seconds."""
        torch.set_num_threads(threads)
        files = {f"data.{key}": str(self.folder / value) for key, value in FILES.items()}
        rest = {"training.steps": self.steps, "training.validate_every": self.steps, "training.device": self.device}
        print(f"== {name}")
        return run_recipe(Recipe.load(None, [], MODEL | files | rest | changes), self.folder / name).seconds

    def train_all(self, runs: dict[str, dict[str, Any]], jobs: int) -> dict[str, tuple[Path, float]]:
        """Trains runs, some at a time, each in a process of its own; returns each with its seconds."""
        threads = max(1, (os.cpu_count() or 1) // jobs)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
            seconds = pool.map(self.train, runs, runs.values(), repeat(threads))
            return {name: (self.folder / name, taken) for name, taken in zip(runs, seconds, strict=True)}

    def score(self, run: Path) -> Score:
        """BLEU of greedy translations; the spaces between Chinese words are for the alignment only."""
        translations = Translator.load(run / "last")([d.pair.source for d in self.test], beam=1)
        return bleu([text.replace(" ", "") for text in translations], [d.pair.target for d in self.test], "zh")

    @torch.no_grad()
    def mass(self, run: Path, prior: str) -> float:
        """The share of one head's attention on a prior, over all test tokens that it guides."""
        translator = Translator.load(run / "last")
        name, source_vocabulary = f"decoder.{LAYER}.cross", translator.vocabularies.source
        total, places = 0.0, 0.0
        for example, links in zip(self.test, self.links, strict=True):
            source = source_vocabulary.encode(example.pair.source)
            target = translator.vocabularies.target.encode(" ".join(example.words))
            with probe(translator.model, [name]) as seen:
                translator.log_probs([source], [target])
            layouts = Padded.of([len(target) + 1]), Padded.of([len(source) + 1])
            if prior == "diagonal":
                wanted = diagonal_prior(*layouts, WIDTH)
            else:
                words = source_vocabulary.word_ids(source), translator.vocabularies.target.word_ids(target)
                tokens = torch.tensor(link_tokens(links, *words)).view(-1, 2)
                wanted = aligned_prior(*layouts, torch.nn.functional.pad(tokens, (1, 0)))
            guided = wanted.any(-1)
            total += float(((seen[name].weights[:, HEAD] * wanted).sum(-1) * guided).sum())
            places += float(guided.sum())
        return total / places

    @torch.no_grad()
    def disagreement(self, run: Path) -> float:
        """The divergence between two readings with different dropout, a token, in nats."""
        model = Translator.load(run / "last").model.train()
        translator = Translator.load(run / "last")
        torch.manual_seed(0)
        total, count = 0.0, 0
        for example in self.test:
            source = translator.vocabularies.source.encode(example.pair.source)
            target = translator.vocabularies.target.encode(" ".join(example.words))
            read = torch.tensor([[*source, model.config.eos]]), torch.tensor([[model.config.bos, *target]])
            total += float(symmetric_kl(model(*read)[0], model(*read)[0]))
            count += len(target) + 1
        return total / count


FILES = {
    "source": "train.en",
    "target": "train.zh",
    "alignments": "train.align",
    "valid_source": "valid.en",
    "valid_target": "valid.zh",
}


def link_words(corpus: list[Example], counted: list[Example]) -> list[list[tuple[int, int]]]:
    """Links each Chinese word to the English word that it most often meets, by the Dice coefficient over `counted`."""
    english, chinese, together = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for example in counted:
        sources, targets = set(words_of(example.pair.source)), set(example.words)
        english.update(sources)
        chinese.update(targets)
        together.update((s, t) for s in sources for t in targets)

    def dice(s: str, t: str) -> float:
        return 2 * together[s, t] / (english[s] + chinese[t]) if together[s, t] else 0.0

    linked = []
    for example in corpus:
        sources = words_of(example.pair.source)
        best = [max(range(len(sources)), key=lambda i, t=t: dice(sources[i], t)) for t in example.words]
        pairs = zip(best, enumerate(example.words), strict=True)
        linked.append([(i, j) for i, (j, t) in pairs if dice(sources[i], t) > 0.3])
    return linked


def words_of(english: str) -> list[str]:
    """The words without case and final mark, one for each that white space parts."""
    return [word.rstrip(".?").lower() for word in english.split()]


def write_corpus(folder: Path, sentences: int) -> tuple[list[Example], list[list[tuple[int, int]]]]:
    """Writes training and validation text with alignments; returns test sentences with theirs."""
    train, test = load_examples("train"), load_examples("test")[:sentences]
    for split, examples in (("train", train), ("valid", load_examples("valid"))):
        (folder / f"{split}.en").write_text("".join(f"{d.pair.source}\n" for d in examples), encoding="utf-8")
        (folder / f"{split}.zh").write_text("".join(f"{' '.join(d.words)}\n" for d in examples), encoding="utf-8")
    lines = (" ".join(f"{i}-{j}" for i, j in links) for links in link_words(train, train))
    (folder / "train.align").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return test, link_words(test, train)


def mix_of(run: Path, settings: dict[str, Any]) -> list[dict[str, float]]:
    """For each line of the log, the share of inputs that were predictions, and the share that the schedule says."""
    share = ScheduledSampling(SamplingSettings.parse(settings, "sampling")).probability
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    curve, before = [], 0
    for entry in (entry for entry in entries if "loss" in entry):
        steps = range(before + 1, entry["step"] + 1)
        expected = sum(map(share, steps)) / len(steps)
        curve.append({"step": entry["step"], "sampled": entry.get("sampled", 0.0), "schedule": expected})
        before = entry["step"]
    return curve


def trained_weights(run: Path) -> dict[str, torch.Tensor]:
    """The weights as the optimiser left them, whatever average was saved."""
    place = run / "checkpoints" / (run / "checkpoints" / "last").read_text().strip()
    state = safetensors.torch.load_file(place / "state.safetensors")
    return {name: tensor for name, tensor in state.items() if name.startswith("model.")}


def measure(bench: Bench, jobs: int) -> tuple[list[dict[str, Any]], list[str]]:
    """One row a method, and what was missed."""
    rows: list[dict[str, Any]] = []
    missed: list[str] = []

    def add(name: str, method: str, settings: dict[str, Any], what: str, value: Any, without: Any, held: bool) -> None:
        run, seconds = runs[name]
        row = {"method": method, "settings": settings, "bleu": bench.score(run).as_dict(), "seconds": round(seconds, 1)}
        rows.append(row | {"what": what, "value": value, "without": without, "held": held})
        print(json.dumps(rows[-1], ensure_ascii=False))
        if not held:
            missed.append(f"{method}: {what} is {value}, without {without}")

    sampling = {
        decay: {"decay": decay, "half_life": bench.steps // 3, "start": bench.steps // 8, "floor": 0.4}
        for decay in ("linear", "exponential", "inverse-sigmoid")
    }
    guides = {
        prior: {"prior": prior, "steps": bench.steps, "width": WIDTH, "layers": [LAYER], "heads": [HEAD]}
        for prior in ("diagonal", "alignments")
    }
    runs = bench.train_all(
        {"plain": {}}
        | {name: {"objective.scheduled_sampling": settings} for name, settings in sampling.items()}
        | {name: {"objective.guided_attention": settings} for name, settings in guides.items()}
        | {"r-drop": {"objective.r_drop": 1.0}, "ema": {"training.ema": 0.98}},
        jobs,
    )
    plain = runs["plain"][0]
    add("plain", "teacher forcing", {}, "", None, None, True)
    for decay, settings in sampling.items():
        curve = mix_of(runs[decay][0], settings)
        furthest = max(abs(point["sampled"] - point["schedule"]) for point in curve)
        what = "largest distance between the share of predictions and its schedule"
        add(decay, f"scheduled sampling, {decay}", settings, what, furthest, None, furthest < MIX_TOLERANCE)
        rows[-1]["mix"] = curve
    for prior, settings in guides.items():
        with_it, without = bench.mass(runs[prior][0], prior), bench.mass(plain, prior)
        held = with_it > GUIDED[prior] and without < UNGUIDED[prior]
        what = f"share of the guided head's attention on the prior (over {GUIDED[prior]}, else under {UNGUIDED[prior]})"
        add(prior, f"guided attention, {prior}", settings, what, with_it, without, held)
    with_it, without = bench.disagreement(runs["r-drop"][0]), bench.disagreement(plain)
    what = "divergence of two readings, nats a token"
    add("r-drop", "R-Drop", {"r_drop": 1.0}, what, with_it, without, with_it < without)
    own, plain_weights = trained_weights(runs["ema"][0]), trained_weights(plain)
    same = all(torch.equal(own[name], tensor) for name, tensor in plain_weights.items())
    saved = safetensors.torch.load_file(runs["ema"][0] / "last" / "model.safetensors")
    distance = sum(float((saved[n] - own[f"model.{n}"]).square().sum()) for n in saved) ** 0.5
    what = "distance of the saved weights from the trained ones, which are those of teacher forcing to the bit"
    add("ema", "EMA", {"ema": 0.98}, what, distance, 0.0, same and distance > 0)
    return rows, missed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        test, links = write_corpus(Path(folder), options.sentences)
        rows, missed = measure(Bench(Path(folder), options.steps, options.device, test, links), options.jobs)
    result = {
        "what": f"the built-in corpus, {options.steps} steps, dropout 0.1, seed 1; {options.sentences} held-out "
        "sentences, greedy search",
        "rows": rows,
        "command": f"python benchmarks/objectives.py --steps {options.steps} --sentences {options.sentences} "
        f"--device {options.device} --jobs {options.jobs}",
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    options.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
