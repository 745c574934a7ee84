"""What translators are timed with: sentences that are given, that a run has kept, or that are made up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.data.text.readers import read_jsonl, read_lines, read_parallel
from regard.evaluation.bench.runs import find_run, open_run
from regard.interop.verification import sample_sources
from regard.pipelines.translator import Translator
from regard.training.resume import DATA
from regard.training.tasks.translation.data import VALID, take_evenly
from regard.training.tasks.translation.recipe import TranslationRecipe

MOST = 256
"""So many sentences are taken where none are given."""


@dataclass(frozen=True)
class Sentences:
    """Sources, their references where there are any, and in words what they are."""

    sources: list[str]
    references: list[str] | None
    said: str


def read_sentences(src: Path, ref: Path | None) -> Sentences:
    """Those of files.

    Raises:
        UserError: a file cannot be read, or the two do not belong together.
    """
    if ref is None:
        sources = list(read_lines(src))
        return Sentences(sources, None, f"{len(sources):,} sentences of {src}")
    pairs = list(read_parallel(src, ref))
    return Sentences([p.source for p in pairs], [p.target for p in pairs], f"{len(pairs):,} sentences of {src}")


def kept_sentences(path: Path) -> Sentences | None:
    """Some that the run there validates with, evenly spaced; None where it has kept none."""
    if find_run(path) is None:
        return None
    folder, recipe = open_run(path)
    if not isinstance(recipe, TranslationRecipe):
        return None
    kept = (recipe.data.store or folder / DATA) / VALID
    if not kept.is_file():
        return None
    filled = [pair.source for pair in read_jsonl(kept) if pair.source.strip()]
    sources = list(take_evenly(filled, len(filled), MOST))
    return Sentences(sources, None, f"{len(sources):,} validation sentences of the run") if sources else None


def make_up_sentences(translator: Translator) -> Sentences:
    """Sentences of random pieces of a model's vocabulary, always the same."""
    source, config = translator.vocabularies.source, translator.model.config
    texts = [source.decode(tokens) for tokens in sample_sources(translator, count=2 * MOST)]
    longest = config.max_length - 1 if config.positions == "learned" else None
    sources = [
        text
        for text in texts
        if text.strip() and "\n" not in text and (longest is None or len(source.encode(text)) <= longest)
    ][:MOST]
    return Sentences(sources, None, f"{len(sources):,} made-up sentences of random pieces, since no run has kept any")
