"""The data of a run: from the files that a recipe names to a folder of tokens, made once and opened ever after.

The folder holds the tokenizer, the store of training tokens, the validation pairs, the list of what was left out, and
what all this was made from.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np

from regard.data.store import DamagedStoreError, store_checksum
from regard.data.text.corpus import Corpus
from regard.data.text.encoding import SkippedPairs, tokenise_corpus
from regard.data.text.pairs import Pair, PairRecord
from regard.data.text.readers import Shard, find_shards, read_jsonl, read_parallel
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokens import ParallelTokens, open_token_store, write_token_store
from regard.data.text.vocabularies import Vocabularies
from regard.errors import UserError
from regard.models.folder import recover_folder, replace_folder
from regard.training.fingerprints import (
    FINGERPRINTS,
    Known,
    check_files,
    check_settings_of_data,
    describe_file,
    describe_files,
    read_fingerprints,
    write_fingerprints,
)
from regard.training.locks import locked
from regard.training.progress import Progress
from regard.training.sharing import make_shared
from regard.training.tasks.translation.origins import list_files, settings_of_data
from regard.training.tasks.translation.recipe import DataSettings, TokenizerSettings, TranslationRecipe

STORE, VALID, LEFT_OUT = "train", "valid.jsonl", "skipped.tsv"
FURTHER = {"tokenizer": str, "tokens": str}  # what is known of tokens beside what is known of any data
T = TypeVar("T")


@dataclass(frozen=True)
class Corpora:
    """The training corpora, which can be read again and again, how many pairs they have, and the validation pairs."""

    train: tuple[Corpus, ...]
    total: int
    valid: list[Pair]

    def pairs(self) -> Iterator[Pair]:
        """All training pairs."""
        return chain.from_iterable(corpus.pairs() for corpus in self.train)


@dataclass(frozen=True)
class RunData:
    """What training reads: tokens, validation pairs, the vocabularies of both; and what was left out, by reason."""

    folder: Path
    vocabularies: Vocabularies
    train: ParallelTokens
    valid: list[Pair]
    left_out: dict[str, int]


def gather_data(
    folder: Path, recipe: TranslationRecipe, progress: Progress, vocabularies: Vocabularies | None = None
) -> None:
    """Makes everything into an empty folder, or shares what lies in `data.store`."""
    gather = make_data if recipe.data.store is None else share_data
    gather(folder, recipe, progress, vocabularies)


def make_data(
    folder: Path, recipe: TranslationRecipe, progress: Progress, vocabularies: Vocabularies | None = None
) -> None:
    """Makes everything into an empty folder; without vocabularies they are learned.

    Raises:
        UserError: a file cannot be read or does not hold what it should, or no pair is left.
    """
    corpora = open_corpora(recipe.data, recipe.training.seed, progress)
    if vocabularies is None:
        wanted = recipe.tokenizer.sample
        if corpora.total > wanted:
            progress.print(f"the tokenizer is learned from {wanted:,} of {corpora.total:,} pairs, evenly spaced")
        vocabularies = build_vocabularies(lambda: take_evenly(corpora.pairs(), corpora.total, wanted), recipe.tokenizer)
    left_out = SkippedPairs()
    write_tokens(folder / STORE, corpora, vocabularies, recipe, left_out, progress)
    valid = _readable(corpora.valid, vocabularies, recipe, left_out)
    rows = (json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in valid)
    (folder / VALID).write_text("".join(rows), encoding="utf-8")
    vocabularies.save(folder)
    left_out.write(folder / LEFT_OUT)
    known: Known = {
        "files": describe_files(list_files(recipe.data)),
        "settings": settings_of_data(recipe),
        "tokenizer": vocabularies.fingerprint(),
        "tokens": store_checksum(folder / STORE),
        "valid": describe_file(folder / VALID),
        "left_out": left_out.counts,
    }
    write_fingerprints(folder, known)


def share_data(
    folder: Path, recipe: TranslationRecipe, progress: Progress, vocabularies: Vocabularies | None = None
) -> None:
    """Keeps in an empty folder what data it is that lies in `data.store`, which is made unless it is there.

    Raises:
        UserError: what is there was made from other files or with other settings; or as `make_data`.
    """
    store = recipe.data.store
    assert store is not None
    make_shared(store, lambda fresh: make_data(fresh, recipe, progress, vocabularies), "tokens", progress)
    known = read_fingerprints(store, **FURTHER)
    check_settings_of_data(settings_of_data(recipe), known["settings"], store)
    check_files(list_files(recipe.data), known["files"], f"the store {store}")
    if vocabularies is not None and vocabularies.fingerprint() != known["tokenizer"]:
        raise UserError(f"{store}: was made with another tokenizer; give another data.store")
    Vocabularies.load(store).save(folder)
    for name in (LEFT_OUT, FINGERPRINTS):
        shutil.copy(store / name, folder / name)


def open_data(folder: Path, recipe: TranslationRecipe, progress: Progress) -> RunData:
    """Opens what was made; a damaged store of tokens is named and made again.

    Raises:
        UserError: the tokenizer, the validation pairs or the tokens are not what they were.
    """
    known = read_fingerprints(folder, **FURTHER)
    vocabularies = Vocabularies.load(folder)
    if vocabularies.fingerprint() != known["tokenizer"]:
        raise UserError(f"{folder}: its tokenizer is not the one that the tokens were made with; put that one back")
    home = recipe.data.store or folder
    if not (home / VALID).exists() or describe_file(home / VALID, known["valid"])["sha256"] != known["valid"]["sha256"]:
        raise UserError(f"{home / VALID}: has changed since the data was made; begin a new run")
    with locked(home, lambda: progress.print(f"waiting for another run that looks after {home}")):
        recover_folder(home / STORE)
        try:
            train = open_token_store(home / STORE)
        except DamagedStoreError as damage:
            progress.print(f"{home / STORE}: damaged ({damage}), so it is made again")
            corpora = open_corpora(recipe.data, recipe.training.seed, progress)
            with replace_folder(home / STORE) as fresh:
                write_tokens(fresh, corpora, vocabularies, recipe, SkippedPairs(), progress)
            train = open_token_store(home / STORE)
    if store_checksum(home / STORE) != known["tokens"]:
        raise UserError(f"{home}: the corpus gives other tokens than when the run began; begin a new run")
    return RunData(folder, vocabularies, train, list(read_jsonl(home / VALID)), known["left_out"])


def open_corpora(data: DataSettings, seed: int, progress: Progress | None = None) -> Corpora:
    """The corpora that the settings name; without validation files, some training pairs are held out.

    All files are read through once, so that what is wrong with one is said now and not after hours.
    """
    if data.builtin:
        from regard.data.builtin.corpus import load_pairs

        pairs = load_pairs("train")
        built_in = Corpus([Shard(f"built-in {data.builtin}", lambda: iter(pairs))])
        return Corpora((built_in,), len(pairs), load_pairs("valid"))
    train = [
        Corpus(find_shards(c.source, c.target, columns=c.columns, keys=c.keys), c.alignments, c.weight)
        for c in data.all_corpora()
    ]
    sizes = [sum(1 for _ in _watch(corpus.records(), "reading", progress)) for corpus in train]
    total = sum(sizes)
    if data.valid_source is not None:
        valid = list(read_parallel(data.valid_source, data.valid_target, columns=data.columns, keys=data.keys))
        return Corpora(tuple(train), total, valid)
    wanted = min(data.hold_out, total // 10)
    if not wanted:
        raise UserError(f"{train[0].name}: {total} pairs are too few to hold some out; give data.valid_source")
    chosen = np.sort(np.random.default_rng(seed).choice(total, wanted, replace=False))
    valid, kept, start = [], [], 0
    for corpus, size in zip(train, sizes, strict=True):
        ours = frozenset((chosen[(start <= chosen) & (chosen < start + size)] - start).tolist())
        valid += [entry.pair for place, entry in enumerate(corpus.all_records()) if place in ours]
        kept.append(Corpus(corpus.shards, corpus.alignments, corpus.weight, ours))
        start += size
    return Corpora(tuple(kept), total - wanted, valid)


def build_vocabularies(pairs: Callable[[], Iterable[Pair]], settings: TokenizerSettings) -> Vocabularies:
    """Learns the tokenizers from the training corpus."""
    if settings.joint:
        joint = Tokenizer.train((text for pair in pairs() for text in pair), settings.size, settings.kind)
        return Vocabularies(joint, joint)
    return Vocabularies(
        Tokenizer.train((pair.source for pair in pairs()), settings.size, settings.kind),
        Tokenizer.train((pair.target for pair in pairs()), settings.size, settings.kind),
    )


def take_evenly(items: Iterable[T], total: int, wanted: int) -> Iterator[T]:
    """At most `wanted` of `total` items, evenly spaced."""
    wanted = min(wanted, total)
    return (item for i, item in enumerate(items) if (i + 1) * wanted // total > i * wanted // total)


def write_tokens(
    folder: Path,
    corpora: Corpora,
    vocabularies: Vocabularies,
    recipe: TranslationRecipe,
    left_out: SkippedPairs,
    progress: Progress,
) -> None:
    """Tokenises the training corpora into a store.

    Raises:
        UserError: no pair of a corpus is left.
    """
    source, target, longest = vocabularies.source, vocabularies.target, recipe.longest()

    def tokens(corpus: Corpus) -> Iterator[ParallelTokens]:
        before, kept = dict(left_out.counts), 0
        for chunk in tokenise_corpus(
            _watch(corpus.records(), "tokenising", progress), source, target, longest, left_out
        ):
            kept += len(chunk)
            yield chunk
        if not kept:
            lost = ", ".join(f"{n - before.get(why, 0):,} have {why}" for why, n in left_out.counts.items())
            raise UserError(f"{corpus.name}: no training pair is left with data.max_length={longest}: {lost}")

    largest = {"source": len(source) - 1, "target": len(target) - 1}
    if any(corpus.alignments for corpus in corpora.train):
        largest["links"] = longest or 2**31
    write_token_store(folder, map(tokens, corpora.train), largest)


def _readable(
    pairs: list[Pair], vocabularies: Vocabularies, recipe: TranslationRecipe, left_out: SkippedPairs
) -> list[Pair]:
    """The validation pairs that the model can read.

    Raises:
        UserError: there are none.
    """
    limit = recipe.longest_readable()
    kept = []
    sides = (
        vocabularies.source.encode_batch([p.source for p in pairs]),
        vocabularies.target.encode_batch([p.target for p in pairs]),
    )
    for line, (pair, source, target) in enumerate(zip(pairs, *sides, strict=True), start=1):
        if limit is not None and max(len(source), len(target)) >= limit:
            left_out.add(
                PairRecord(pair, "validation", line), f"over {limit} tokens in validation", len(source), len(target)
            )
        else:
            kept.append(pair)
    if not any(pair.source.strip() and pair.target.strip() for pair in kept):
        raise UserError(f"none of the {len(pairs)} validation pairs has two sides that this model can read")
    return kept


def _watch(entries: Iterator[PairRecord], what: str, progress: Progress | None) -> Iterator[PairRecord]:
    return entries if progress is None else progress.watch(entries, what)
