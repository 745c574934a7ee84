"""Similar words lie near each other, and contextual vectors feed classifiers and regressors.

Compared are the rows of the embedding table and the outputs of the encoder, for the words of the corpus's lexicon.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from regard import Translator
from regard.data.builtin.corpus import Example, load_examples
from tools.corpus.lexicon import people, places
from tools.corpus.lexicon.nouns import list_nouns

from .drawing import COLOURS, panels
from .training import STEPS, train

KINDS = ("embedding", "contextual")
NOUN_GROUPS = {
    "food": "fruit vegetable dish",
    "drinks": "drink",
    "reading": "reading",
    "clothes": "clothes accessory",
    "furniture": "furniture",
    "tableware": "dishes",
    "animals": "pet farm zoo",
}
SENSES = {
    "play": ("弹", "打", "踢"),
    "glasses": ("眼镜", "杯"),
    "watch": ("看", "手表"),
    "clean": ("打扫", "干净"),
}
"""Words with several meanings; each is translated by another Chinese word."""
DRAWN = ("food", "animals", "names", "relatives", "cities")
"""Groups in the picture."""
OCCURRENCES = 20
"""Occurrences of each word, at most."""


class Occurrence(NamedTuple):
    """A word in a sentence, with its vectors and the Chinese words of the sentence."""

    word: str
    sentence: int
    translation: frozenset[str]
    embedding: Tensor
    contextual: Tensor


class Entry(NamedTuple):
    """A word of the lexicon, its group and its base form."""

    group: str
    base: str


@cache
def lexicon() -> dict[str, Entry]:
    """Return the English words of the lexicon that are single words, in lower case."""
    forms = {name: [(n.english, n.plural) for n in list_nouns(kinds)] for name, kinds in NOUN_GROUPS.items()}
    forms |= {
        "names": [(person.english,) for person in people.NAMES],
        "relatives": [(relative[0],) for relative in people.RELATIVES],
        "jobs": [(role.english, role.plural) for role in people.OCCUPATIONS],
        "cities": [(place.name,) for place in places.CITIES],
        "countries": [(place.name,) for place in places.COUNTRIES],
        "buildings": [(place.name,) for place in places.BUILDINGS],
    }
    words = ((form, Entry(name, each[0])) for name, entries in forms.items() for each in entries for form in each)
    return {form.lower(): entry for form, entry in words if form.isalpha()}


def measure(seeds: list[int], runs: Path, sentences: int = 2000) -> dict[str, Any]:
    """Fit probes to training sentences; measure them and the distances on sentences that no model was trained on."""
    return measure_models([train(runs, seed) for seed in seeds], seeds, sentences)


def measure_models(translators: list[Translator], seeds: list[int], sentences: int) -> dict[str, Any]:
    training = load_examples("train", sentences)
    unseen = [*load_examples("valid", sentences), *load_examples("test", sentences)]
    rows = [measure_model(translator, training, unseen) for translator in translators]
    drawn = rows[0].pop("drawn")
    for row in rows[1:]:
        del row["drawn"]
    return {
        "what": f"the demo recipe with {STEPS} steps; probes are fitted to {len(training):,} training sentences; "
        f"everything is measured on {len(unseen):,} other sentences",
        "steps": STEPS,
        "seeds": seeds,
        "rows": rows,
        "drawn": drawn,
    }


def measure_model(translator: Translator, training: list[Example], unseen: list[Example]) -> dict[str, Any]:
    seen, found = (list(occurrences(translator, examples)) for examples in (training, unseen))
    of_words = defaultdict(list)
    for one in found:
        of_words[one.word].append(one)
    words = {word: of_words[word][:OCCURRENCES] for word in lexicon() if len(of_words[word]) >= 2}
    return {
        "words": len(words),
        "neighbours": {kind: nearest_words(words, kind) for kind in KINDS},
        "cosines": {kind: mean_cosines(words, kind) for kind in KINDS},
        "nearest_is_same_word": nearest_occurrence(words),
        "senses": {word: separate_senses(word, seen, of_words[word]) for word in SENSES},
        "length": {kind: predict_length(translator, training, unseen, kind) for kind in KINDS},
        "drawn": project_words(words),
    }


def occurrences(translator: Translator, examples: list[Example]) -> Iterator[Occurrence]:
    """Yield the words of sentences that are not followed by punctuation, in lower case."""
    table, vocabulary = translator.model.source_embedding.weight.detach(), translator.vocabularies.source
    outputs = translator.embed([example.pair.source for example in examples], pool="none")
    wanted = {*lexicon(), *SENSES}
    for i, (example, output) in enumerate(zip(examples, outputs, strict=True)):
        tokens = vocabulary.encode(example.pair.source)
        numbers = torch.tensor(vocabulary.word_ids(tokens))
        for number, word in enumerate(example.pair.source.split()):
            if word.lower() in wanted:
                own = numbers == number
                vectors = table[torch.tensor(tokens)[own]].mean(0), output[own].mean(0)
                yield Occurrence(word.lower(), i, frozenset(example.words), *vectors)


def nearest_words(words: dict[str, list[Occurrence]], kind: str) -> dict[str, float]:
    """Return how often the nearest word belongs to the same group, by mean vectors and by chance.

    Forms of the same word, such as its plural, are not counted as neighbours.
    """
    entries = [lexicon()[word] for word in words]
    group, base = ids(entry.group for entry in entries), ids(entry.base for entry in entries)
    other, same_group = base[:, None] != base, group[:, None] == group
    vectors = F.normalize(mean_vectors(words, kind), dim=-1)
    nearest = (vectors @ vectors.T).masked_fill(~other, -2.0).argmax(-1)
    return {
        "same_group": (group[nearest] == group).float().mean().item(),
        "by_chance": ((same_group & other).sum(-1) / other.sum(-1)).mean().item(),
    }


def mean_vectors(words: dict[str, list[Occurrence]], kind: str) -> Tensor:
    return torch.stack([torch.stack([getattr(one, kind) for one in each]).mean(0) for each in words.values()])


def mean_cosines(words: dict[str, list[Occurrence]], kind: str) -> dict[str, float]:
    """Return the mean cosine of occurrences in different sentences, by what their words have in common."""
    every = [one for each in words.values() for one in each]
    entries = [lexicon()[one.word] for one in every]
    vectors = F.normalize(torch.stack([getattr(one, kind) for one in every]), dim=-1)
    cosines = vectors @ vectors.T
    keys = ([o.word for o in every], [e.base for e in entries], [e.group for e in entries], [o.sentence for o in every])
    same_word, same_base, same_group, same_sentence = (key[:, None] == key for key in map(ids, keys))
    parts = {"same word": same_word, "same group": same_group & ~same_base, "other group": ~same_group}
    return {name: cosines[chosen & ~same_sentence].mean().item() for name, chosen in parts.items()}


def ids(values: Iterable[Any]) -> Tensor:
    """Return equal numbers for equal values."""
    listed = list(values)
    numbers = {value: number for number, value in enumerate(dict.fromkeys(listed))}
    return torch.tensor([numbers[value] for value in listed])


def nearest_occurrence(words: dict[str, list[Occurrence]]) -> float:
    """Return how often the contextual vector that is nearest to a word's, in another sentence, is of the same word."""
    every = [one for each in words.values() for one in each]
    vectors = F.normalize(torch.stack([one.contextual for one in every]), dim=-1)
    word, sentence = ids([one.word for one in every]), ids([one.sentence for one in every])
    cosines = (vectors @ vectors.T).masked_fill(sentence[:, None] == sentence, -2.0)
    return (word[cosines.argmax(-1)] == word).float().mean().item()


def separate_senses(word: str, seen: list[Occurrence], unseen: list[Occurrence]) -> dict[str, float]:
    """Return cosines within and between the meanings of a word, and the accuracy of a classifier on its vectors."""
    fitted, tested = (with_senses(word, each) for each in (seen, unseen))
    labels = torch.tensor([sense for _, sense in tested])
    directions = F.normalize(torch.stack([one.contextual for one, _ in tested]), dim=-1)
    cosines, same = directions @ directions.T, labels[:, None] == labels
    other = ~torch.eye(len(labels), dtype=torch.bool)
    result = {
        "occurrences": len(tested),
        "within": cosines[same & other].mean().item(),
        "between": cosines[~same].mean().item(),
    }
    targets = F.one_hot(torch.tensor([sense for _, sense in fitted]), len(SENSES[word])).float()
    for kind in KINDS:
        x, y = (torch.stack([getattr(one, kind) for one, _ in each]) for each in (fitted, tested))
        result[f"accuracy_{kind}"] = (fit_linear(x, targets, y).argmax(-1) == labels).float().mean().item()
    return result


def with_senses(word: str, found: list[Occurrence]) -> list[tuple[Occurrence, int]]:
    """Return the occurrences of a word whose translation shows exactly one of its meanings, with this meaning."""
    meanings = [(one, [i for i, sense in enumerate(SENSES[word]) if sense in one.translation]) for one in found]
    return [(one, shown[0]) for one, shown in meanings if one.word == word and len(shown) == 1]


def predict_length(translator: Translator, training: list[Example], unseen: list[Example], kind: str) -> float:
    """Return R² of the number of Chinese words, predicted from the vector of the first token of the source alone."""
    x, y = (first_vectors(translator, examples, kind) for examples in (training, unseen))
    lengths, true = (torch.tensor([[len(e.words)] for e in examples]).float() for examples in (training, unseen))
    return (1 - (fit_linear(x, lengths, y) - true).square().sum() / (true - true.mean()).square().sum()).item()


def first_vectors(translator: Translator, examples: list[Example], kind: str) -> Tensor:
    sources = [example.pair.source for example in examples]
    if kind == "contextual":
        return torch.stack([output[0] for output in translator.embed(sources, pool="none")])
    first = [translator.vocabularies.source.encode(source)[0] for source in sources]
    return translator.model.source_embedding.weight.detach()[first]


def fit_linear(x: Tensor, targets: Tensor, y: Tensor, penalty: float = 1.0) -> Tensor:
    """Fit a linear map from standardised x to targets by ridge regression; return its predictions for y."""
    mean, scale = x.mean(0), x.std(0).clamp(min=1e-6)
    x, y = ((each - mean) / scale for each in (x, y))
    middle = targets.mean(0)
    weights = torch.linalg.solve(x.T @ x + penalty * torch.eye(x.shape[1]), x.T @ (targets - middle))
    return y @ weights + middle


def project_words(words: dict[str, list[Occurrence]]) -> list[dict[str, Any]]:
    """Return the first two principal components of the base forms of a few groups."""
    entries = {word: lexicon()[word] for word in words}
    chosen = {w: words[w] for w, entry in entries.items() if entry.group in DRAWN and entry.base.lower() == w}
    rows: list[dict[str, Any]] = [{"word": entries[word].base, "group": entries[word].group} for word in chosen]
    for kind in KINDS:
        vectors = F.normalize(mean_vectors(chosen, kind), dim=-1)
        u, s, _ = torch.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
        for row, point in zip(rows, (u[:, :2] * s[:2]).tolist(), strict=True):
            row[kind] = [round(value, 4) for value in point]
    return rows


def draw(result: dict[str, Any]) -> Figure:
    figure, (*scatters, cosines, accuracies) = panels(2, "", rows=2)
    for panel, kind in zip(scatters, KINDS, strict=True):
        for row in result["drawn"]:
            panel.plot(*row[kind], ".", color=COLOURS[DRAWN.index(row["group"])], markersize=3)
            panel.annotate(row["word"], row[kind], fontsize=7, color=COLOURS[DRAWN.index(row["group"])])
        panel.set_title(f"{kind} vectors, two principal components", loc="left", fontsize=11)
        panel.tick_params(labelbottom=False, labelleft=False)
        panel.margins(x=0.1)
    first = result["rows"][0]
    draw_bars(cosines, {kind: [row["cosines"][kind] for row in result["rows"]] for kind in KINDS})
    cosines.set_title("cosine of words in two sentences", loc="left", fontsize=11)
    found = {
        kind: [{word: row["senses"][word][f"accuracy_{kind}"] for word in first["senses"]} for row in result["rows"]]
        for kind in KINDS
    }
    draw_bars(accuracies, found)
    accuracies.set_title("meanings found by a classifier, share", loc="left", fontsize=11)
    labels = cosines.get_legend_handles_labels()
    figure.legend(*labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def draw_bars(axes: Axes, values: dict[str, list[dict[str, float]]]) -> None:
    """Draw the mean over seeds as a bar and each seed as a dot; `values` has a row for each seed, by kind."""
    for number, (kind, rows) in enumerate(values.items()):
        places = [place + (number - 0.5) * 0.36 for place in range(len(rows[0]))]
        means = [fmean(row[name] for row in rows) for name in rows[0]]
        axes.bar(places, means, 0.34, color=COLOURS[number], label=f"{kind} vectors")
        for row in rows:
            axes.plot(places, list(row.values()), ".", color="#000000", markersize=4)
        axes.set_xticks(range(len(rows[0])), list(rows[0]))
    axes.grid(axis="x", visible=False)
