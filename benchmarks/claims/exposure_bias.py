"""Scheduled sampling against exposure bias: quality by length, and after a wrong token in the prefix."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from regard import Constraints, SearchSettings, Translator
from regard.data.builtin.corpus import Example, load_examples
from regard.evaluation.metrics import bleu, exact_match

from .drawing import COLOURS, panels
from .training import ALL_STEPS, SCHEDULES, STEPS, train

METHODS = {
    f"{name}, {steps} steps": (sampling, steps)
    for steps in (STEPS, ALL_STEPS)
    for name, sampling in (("teacher forcing", False), ("scheduled sampling", True))
}
LENGTHS = {"4–7": range(4, 8), "8–10": range(8, 11), "11–13": range(11, 14), "14+": range(14, 1000)}
"""Groups of test sentences by the characters of the reference."""
CONDITIONS = {"free": "whole sentences", "right": "after a right prefix", "wrong": "after a wrong token"}
LEFT = 2
"""Tokens of the reference that follow a prefix, at least."""


def measure(seeds: list[int], runs: Path, sentences: int = 1000) -> dict[str, Any]:
    translators = {
        method: [train(runs, seed, *options) for seed in (seeds if STEPS in options else seeds[:1])]
        for method, options in METHODS.items()
    }
    return measure_models(translators, seeds, sentences)


def measure_models(translators: dict[str, list[Translator]], seeds: list[int], sentences: int) -> dict[str, Any]:
    """Translate the test sentences with each model, from the start and from prefixes of the references."""
    examples = load_examples("test", sentences)
    first, *_ = translators.values()
    cuts = cut(first[0], examples)
    scores = {
        method: [scores_of(translator, examples, cut(translator, examples)) for translator in models]
        for method, models in translators.items()
    }
    lengths = [len(example.pair.target) for example in examples]
    return {
        "what": f"the demo recipe, {STEPS} steps with each seed and {ALL_STEPS} steps with the first; "
        f"{len(examples):,} test sentences, {len(cuts):,} of them with prefixes, greedy search",
        "schedules": SCHEDULES,
        "steps": STEPS,
        "all_steps": ALL_STEPS,
        "seeds": seeds,
        "sentences": {name: sum(map(group.__contains__, lengths)) for name, group in LENGTHS.items()},
        "prefixes": {name: sum(lengths[one.sentence] in group for one in cuts) for name, group in LENGTHS.items()},
        "example": examples[cuts[0].sentence].pair._asdict() | cuts[0]._asdict(),
        "scores": scores,
    }


class Cut(NamedTuple):
    """A sentence, the start of its reference with the right and with a wrong last token, and the rest."""

    sentence: int
    right: str
    wrong: str
    rest: str


def cut(translator: Translator, examples: list[Example]) -> list[Cut]:
    """Cut each reference at random between two tokens; the wrong token is one of another reference, at random.

    A prefix is given as text, so that places are excluded where the tokenizer would encode this text differently.
    """
    choice, tokenizer = random.Random(1), translator.vocabularies.target
    tokens = [tokenizer.encode(example.pair.target) for example in examples]
    every = [token for sentence in tokens for token in sentence]
    cuts = []
    for i, sentence in enumerate(tokens):
        for place in choice.sample(range(len(sentence)), len(sentence)):
            wrong = choice.choice([token for token in every[:2000] if token != sentence[place]])
            prefixes = [*sentence[: place + 1]], [*sentence[:place], wrong]
            right_text, wrong_text = map(tokenizer.decode, prefixes)
            encodes_alike = prefixes == (tokenizer.encode(right_text), tokenizer.encode(wrong_text))
            if encodes_alike and len(sentence) - place > LEFT:
                cuts.append(Cut(i, right_text, wrong_text, examples[i].pair.target[len(right_text) :]))
                break
    return cuts


def scores_of(translator: Translator, examples: list[Example], cuts: list[Cut]) -> dict[str, Any]:
    """Return BLEU and exact matches by condition and length, of whole sentences or of what follows the prefix."""
    references = [example.pair.target for example in examples]
    free = translator([example.pair.source for example in examples], beam=1, split=False)
    found = {"free": by_length(free, references, [len(reference) for reference in references])}
    sources = [examples[one.sentence].pair.source for one in cuts]
    lengths = [len(references[one.sentence]) for one in cuts]
    for kind in ("right", "wrong"):
        prefixes = [getattr(one, kind) for one in cuts]
        constraints = [Constraints(prefix=prefix) for prefix in prefixes]
        best = translator.hypotheses(sources, SearchSettings(beam=1), constraints, split=False)
        continued = [one[0].text[len(prefix) :] for one, prefix in zip(best, prefixes, strict=True)]
        found[kind] = by_length(continued, [one.rest for one in cuts], lengths)
    return found


def by_length(translations: list[str], references: list[str], lengths: list[int]) -> dict[str, dict[str, float]]:
    """Return BLEU and the percentage of exact matches of all sentences, and of each group of lengths."""
    found = {}
    for name, group in {"all": range(1, 1000), **LENGTHS}.items():
        chosen = [i for i, length in enumerate(lengths) if length in group]
        if chosen:
            pair = [translations[i] for i in chosen], [references[i] for i in chosen]
            found[name] = {"bleu": bleu(*pair, "zh").value, "exact": exact_match(*pair)}
    return found


def draw(result: dict[str, Any]) -> Figure:
    figure, axes = panels(3, "exact matches, %")
    groups = list(LENGTHS)
    for panel, (kind, title) in zip(axes, CONDITIONS.items(), strict=True):
        for number, (method, runs) in enumerate(result["scores"].items()):
            values = [[run[kind][group]["exact"] for group in groups] for run in runs]
            places = [place + (number % 2 - 0.5) * 0.16 for place in range(len(groups))]
            means = [sum(column) / len(column) for column in zip(*values, strict=True)]
            style = {"color": COLOURS[number % 2], "linestyle": "--" if number > 1 else "-"}
            panel.plot(places, means, linewidth=1.6, label=method, **style)
            for run in values:
                panel.plot(places, run, "o", color=COLOURS[number % 2], markersize=4, alpha=0.6)
        panel.set_xticks(range(len(groups)), groups)
        panel.set_title(title, loc="left", fontsize=11)
        panel.set_xlabel("characters of the reference")
    lowest = min(panel.get_ylim()[0] for panel in axes[:2])
    for panel in axes[:2]:
        panel.set_ylim(lowest, 100.5)
    axes[2].set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
