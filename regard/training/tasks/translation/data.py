"""Data of a translation run: tokenizer, training tokens and validation pairs, prepared once in a folder.

The folder contains the tokenizer, the store of training tokens, the validation pairs, a list of skipped pairs, and the
fingerprints of everything that it was made from.
"""

import hashlib
import heapq
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console

from regard.data.array_store import store_checksum
from regard.data.text.annotation import TermAnnotation
from regard.data.text.bpe_dropout import WordTypes
from regard.data.text.cleaning.report import Report
from regard.data.text.corpus import Corpus
from regard.data.text.encoding import SkippedPairs, tokenise_corpus
from regard.data.text.glossary import Glossary
from regard.data.text.languages import detect_language, language_name
from regard.data.text.readers import Pair, PairRecord, Shard, find_shards, read_jsonl, read_parallel, read_texts
from regard.data.text.tokenizer import Tokenizer, Vocabularies
from regard.data.text.tokens import (
    SEGMENTATIONS,
    WORDS,
    ParallelTokens,
    RaggedArray,
    open_token_store,
    write_token_store,
)
from regard.errors import UserError, prefix_errors
from regard.training.prepared_data import (
    FINGERPRINTS,
    Fingerprints,
    check_files,
    fingerprint_file,
    fingerprint_files,
    lock_folder,
    make_shared_store,
    open_or_recreate,
    read_fingerprints,
    write_fingerprints,
)
from regard.training.progress import Progress, counted
from regard.training.tasks.translation.recipe import (
    UNKNOWN,
    CorpusSettings,
    CorpusUse,
    DataSettings,
    TokenizerSettings,
    TranslationRecipe,
)

DETECTION_PAIRS = 1000
"""Number of pairs whose script is examined if the languages are not known otherwise."""
STORE, VALID, SKIPPED, CLEANING = "train", "valid.jsonl", "skipped.tsv", "cleaning.json"
FINGERPRINT_KEYS = {"tokenizer": str, "tokens": str}
T = TypeVar("T")
Records = Iterable[tuple[int, int, Pair]]
"""Training pairs, each with the number of its corpus and its row in it."""


@dataclass(frozen=True)
class Corpora:
    """Training corpora, which can be read repeatedly, and validation pairs."""

    train: tuple[Corpus, ...]
    total: int  # number of training pairs
    valid: list[Pair]
    cleaning: Report | None = None  # what was removed, if data.clean is set

    def pairs(self) -> Iterator[Pair]:
        """Iterate over all training pairs."""
        return chain.from_iterable(corpus.pairs() for corpus in self.train)


@dataclass(frozen=True)
class TranslationData:
    """Prepared data: training tokens, validation pairs, vocabularies, and numbers of unused pairs by reason."""

    folder: Path
    vocabularies: Vocabularies
    train: ParallelTokens
    valid: list[Pair]
    skipped: dict[str, int]
    removed: dict[str, int]  # by the rules of data.clean


def prepare_data(
    folder: Path, recipe: TranslationRecipe, progress: Progress, vocabularies: Vocabularies | None = None
) -> None:
    """Prepare the data in an empty folder, or in the shared store `data.store`, whose tokenizer is copied."""
    store = recipe.data.store
    if store is None:
        write_data(folder, recipe, progress, vocabularies)
        return
    make_shared_store(
        store,
        lambda fresh: write_data(fresh, recipe, progress, vocabularies),
        "tokens",
        data_settings(recipe),
        progress,
    )
    fingerprints = read_fingerprints(store, **FINGERPRINT_KEYS)
    check_files(recipe.data.files(), fingerprints["files"], f"the store {store}")
    if vocabularies is not None and vocabularies.fingerprint() != fingerprints["tokenizer"]:
        raise UserError(f"{store}: was made with another tokenizer; set another data.store")
    Vocabularies.load(store).save(folder)
    for name in (SKIPPED, FINGERPRINTS, *([CLEANING] if recipe.data.clean else [])):
        shutil.copy(store / name, folder / name)


def write_data(
    folder: Path, recipe: TranslationRecipe, progress: Progress, vocabularies: Vocabularies | None = None
) -> None:
    """Tokenise the corpora into an empty folder; train the tokenizer if no vocabularies are given."""
    corpora = open_corpora(recipe.data, recipe.training.seed, progress)
    if vocabularies is None:
        sample = recipe.tokenizer.sample
        if corpora.total > sample:
            progress.print(f"training the tokenizer on {sample:,} of {corpora.total:,} pairs, evenly spaced")
        vocabularies = train_tokenizers(lambda: take_evenly(corpora.pairs(), corpora.total, sample), recipe.tokenizer)
        with prefix_errors("data.tag"):
            vocabularies = vocabularies.with_tokens(vocabularies.missing(recipe.data.tags()))
    skipped = SkippedPairs()
    write_tokens(folder / STORE, corpora, vocabularies, recipe, skipped, progress)
    valid = _select_valid_pairs(corpora.valid, vocabularies, recipe, skipped)
    rows = (json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in valid)
    (folder / VALID).write_text("".join(rows), encoding="utf-8")
    vocabularies.save(folder)
    skipped.write(folder / SKIPPED)
    if corpora.cleaning is not None:
        (folder / CLEANING).write_text(corpora.cleaning.as_json(), encoding="utf-8")
    fingerprints: Fingerprints = {
        "files": fingerprint_files(recipe.data.files()),
        "settings": data_settings(recipe),
        "tokenizer": vocabularies.fingerprint(),
        "tokens": store_checksum(folder / STORE),
        "valid": fingerprint_file(folder / VALID),
        "skipped": skipped.counts,
        "removed": dict(corpora.cleaning.removed) if corpora.cleaning else {},
    }
    write_fingerprints(folder, fingerprints)


def data_settings(recipe: TranslationRecipe) -> Fingerprints:
    """Return the settings that determine the tokens, as they are read back from JSON."""
    data = recipe.data
    settings = {f"tokenizer.{key}": value for key, value in recipe.tokenizer.model_dump(mode="json").items()}
    settings |= {f"data.{key}": getattr(data, key) for key in ("builtin", "both_directions")}
    settings |= {"data.directions": list(map(list, data.directions))} if data.directions else {}
    settings |= {"data.max_length": recipe.max_length()}
    settings |= {"data.clean": data.clean.model_dump(mode="json", exclude={"exclude"}) if data.clean else None}
    for number, corpus in enumerate(data.all_corpora()):
        settings |= {f"data.corpora.{number}.{key}": list(getattr(corpus, key)) for key in ("keys", "columns")}
        settings |= {f"data.corpora.{number}.tag": corpus.tag} if corpus.tag else {}
    if data.glossary_augment is not None:
        settings |= {"data.glossary_augment.share": data.glossary_augment.share, "data.languages": list(data.languages)}
    if data.valid_source is None:
        settings |= {"data.hold_out": data.hold_out, "training.seed": recipe.training.seed}
    return settings


def open_data(folder: Path, recipe: TranslationRecipe, progress: Progress) -> TranslationData:
    """Open prepared data; recreate the token store if it is damaged."""
    fingerprints = read_fingerprints(folder, **FINGERPRINT_KEYS)
    vocabularies = Vocabularies.load(folder)
    if vocabularies.fingerprint() != fingerprints["tokenizer"]:
        raise UserError(f"{folder}: the tokenizer is not the one that the tokens were made with; restore it")
    home = recipe.data.store or folder
    valid = fingerprints["valid"]
    if not (home / VALID).exists() or fingerprint_file(home / VALID, valid)["sha256"] != valid["sha256"]:
        raise UserError(f"{home / VALID}: is missing or has changed since the data was prepared; start a new run")

    def recreate(folder: Path) -> None:
        corpora = open_corpora(recipe.data, recipe.training.seed, progress)
        write_tokens(folder, corpora, vocabularies, recipe, SkippedPairs(), progress)

    with lock_folder(home, lambda: progress.print(f"waiting for another run that checks {home}")):
        seed = recipe.training.seed if recipe.tokenizer.dropout else None
        train = open_or_recreate(home / STORE, partial(open_token_store, dropout_seed=seed), recreate, progress)
    if store_checksum(home / STORE) != fingerprints["tokens"]:
        raise UserError(f"{home}: the corpus now gives other tokens than when the run was created; start a new run")
    return TranslationData(
        folder,
        vocabularies,
        train,
        list(read_jsonl(home / VALID)),
        fingerprints["skipped"],
        fingerprints.get("removed", {}),
    )


def open_corpora(data: DataSettings, seed: int, progress: Progress | None = None) -> Corpora:
    """Open and clean the corpora; without validation files, hold out some training pairs.

    All files are read once, so that errors are reported immediately; with data.clean, three times.
    """
    progress = progress or Progress(1, Console(quiet=True))
    valid: list[Pair] | None = None
    if data.builtin:
        from regard.data.builtin.corpus import load_pairs

        pairs, valid = load_pairs("train"), load_pairs("valid")
        train = [Corpus([Shard(f"built-in {data.builtin}", lambda: iter(pairs))])]
    else:
        train = [_open_corpus(settings) for settings in data.all_corpora()]
        if headers := [shard.name for corpus in train for shard in corpus.shards if shard.header() is not None]:
            more = f", as in {counted(len(headers) - 1, 'other file')}" if len(headers) > 1 else ""
            progress.print(f"{headers[0]}: the first line is a header and not used as a pair{more}")
    if data.valid_source is not None:
        valid = list(read_parallel(data.valid_source, data.valid_target, columns=data.columns, keys=data.keys))
    report = None
    if data.clean is not None:
        train, report = _clean(train, data, valid or [], progress)
    records = (
        (number, row, record.pair)
        for number, corpus in enumerate(train)
        for row, record in enumerate(progress.track(corpus.records(), "reading"))
    )
    if valid is None:
        held_out = _hold_out(train, records, data, seed, progress.print)
        return replace(held_out, cleaning=report)
    total = sum(1 for _ in records) if data.builtin else _count_and_compare(records, valid, progress.print)
    return Corpora(tuple(train), total, _in_all_directions(data, [(0, pair) for pair in valid]), report)


def _clean(
    train: list[Corpus], data: DataSettings, valid: list[Pair], progress: Progress
) -> tuple[list[Corpus], Report]:
    """Apply the rules of data.clean to all corpora together; texts of the validation pairs are removed too."""
    from regard.data.text.cleaning.cleaner import Cleaner

    assert data.clean is not None
    header = train[0].shards[0].header() or ("", "")
    codes = [code if code not in UNKNOWN else "" for code in data.language_pair(header)]
    excluded = chain((text for pair in valid for text in pair), *map(read_texts, data.clean.exclude))
    cleaner = Cleaner(data.clean, (codes[0], codes[1]), excluded)
    cleaner.report.conditions |= {"languages": codes, "settings": data.clean.model_dump(mode="json")}
    lengths = [0] * len(train)

    def read() -> Iterator[PairRecord]:
        for number, corpus in enumerate(train):
            lengths[number] = 0
            for record in corpus.all_records():
                lengths[number] += 1
                yield record

    counters = {name: progress.counter(name, "pairs") for name in ("reading", "cleaning")}
    done = dict.fromkeys(counters, 0)

    def count(name: str, pairs: int) -> None:
        done[name] += pairs
        counters[name](done[name])

    kept = np.concatenate([mask for _, mask in cleaner.clean(read, count)])
    bounds = np.cumsum(lengths)[:-1]
    cleaned = [replace(corpus, kept=mask) for corpus, mask in zip(train, np.split(kept, bounds), strict=True)]
    for corpus in cleaned:
        if corpus.kept is not None and not corpus.kept.any():
            raise UserError(f"{corpus.name}: the rules of data.clean remove all pairs; change their thresholds")
    for line in cleaner.report.notes:
        progress.print(f"cleaning: {line}")
    return cleaned, cleaner.report


def _open_corpus(settings: CorpusSettings) -> Corpus:
    shards = find_shards(settings.source, settings.target, columns=settings.columns, keys=settings.keys)
    return Corpus(shards, settings.alignments, settings.weight)


def complete_languages(recipe: TranslationRecipe, progress: Progress) -> TranslationRecipe:
    """Return the recipe with the languages that the data shows; those that are uncertain are printed."""
    if recipe.data.builtin or recipe.data.directions:
        return recipe
    corpus = _open_corpus(recipe.data.all_corpora()[0])
    codes = list(recipe.data.language_pair(corpus.shards[0].header() or corpus.shards[0].languages() or ("", "")))
    uncertain = []
    for side, name in enumerate(UNKNOWN):
        if codes[side] != name:
            continue
        codes[side] = detect_language(pair[side] for pair in islice(corpus.pairs(), DETECTION_PAIRS))
        found = f"is {language_name(codes[side])} by its script" if codes[side] else "is unknown"
        uncertain.append(f"the language of the {name} {found}")
    if uncertain:
        progress.print(f"warning: {' and '.join(uncertain)}; set data.languages, such as [en, zh]")
    return recipe.with_group("data", languages=codes)


def _count_and_compare(records: Records, valid: list[Pair], report: Callable[[str], object]) -> int:
    """Count the training pairs, and report how many validation sources also occur in them."""
    keys, seen, total = {_source_key(pair) for pair in valid}, set(), 0
    for total, (*_, pair) in enumerate(records, start=1):  # noqa: B007  the last value is the count
        if (key := _source_key(pair)) in keys:
            seen.add(key)
    if repeated := [pair for pair in valid if _source_key(pair) in seen]:
        report(
            f"warning: {len(repeated):,} of {counted(len(valid), 'validation pair')} have a source that also occurs in "
            f"the training data, so that their scores are too high; the first is {repeated[0].source!r}"
        )
    return total


def _source_key(pair: Pair) -> str:
    """Return the source without differences in case and white space."""
    return " ".join(pair.source.split()).casefold()


def _hold_out(
    corpora: list[Corpus], records: Records, data: DataSettings, seed: int, report: Callable[[str], object]
) -> Corpora:
    """Hold out random sources for validation, at most a tenth of the distinct ones, with all pairs that have them.

    The sources with the smallest hashes are held out, so that one pass in bounded memory is enough.
    """
    candidates: dict[int, tuple[Pair, list[tuple[int, int]]]] = {}  # first pair and all rows by the hash of the source
    largest: list[int] = []  # negative hashes as a heap
    total = 0
    for total, (corpus, row, pair) in enumerate(records, start=1):  # noqa: B007  the last value is the count
        if not all(text.strip() for text in pair):
            continue  # neither trained on nor validated
        digest = hashlib.blake2b(_source_key(pair).encode(), digest_size=8, key=str(seed).encode()).digest()
        key = int.from_bytes(digest)
        if key not in candidates:
            heapq.heappush(largest, -key)
            candidates[key] = pair, []
            if len(largest) > 10 * data.hold_out:
                del candidates[-heapq.heappop(largest)]
        if key in candidates:
            candidates[key][1].append((corpus, row))
    sources = [candidates[key] for key in sorted(candidates)[: len(candidates) // 10]]
    if not candidates:
        raise UserError(f"{corpora[0].name}: all {counted(total, 'pair')} have an empty side; both must contain text")
    if not sources:
        raise UserError(
            f"{corpora[0].name}: {counted(total, 'pair')} with {counted(len(candidates), 'different source')} are too "
            "few to hold some out; give data.valid_source"
        )
    places = [place for _, rows in sources for place in rows]
    train = [
        replace(corpus, held_out=frozenset(row for owner, row in places if owner == number))
        for number, corpus in enumerate(corpora)
    ]
    if further := len(places) - len(sources):
        report(f"not used: {counted(further, 'pair')} with the same source as a pair held out for validation")
    valid = [(rows[0][0], pair) for pair, rows in sorted(sources, key=lambda source: source[1])]
    return Corpora(tuple(train), total - len(places), _in_all_directions(data, valid))


def train_tokenizers(pairs: Callable[[], Iterable[Pair]], settings: TokenizerSettings) -> Vocabularies:
    """Train the tokenizers on pairs, which are read once or twice."""
    if settings.kind == "sentencepiece":
        raise UserError(
            "tokenizer.kind: sentencepiece is for runs with init.from; to train a tokenizer, set bpe or word"
        )
    if settings.joint:
        joint = Tokenizer.train((text for pair in pairs() for text in pair), settings.size, settings.kind)
        return Vocabularies(joint, joint)
    return Vocabularies(
        Tokenizer.train((pair.source for pair in pairs()), settings.size, settings.kind),
        Tokenizer.train((pair.target for pair in pairs()), settings.size, settings.kind),
    )


def take_evenly(items: Iterable[T], total: int, number: int) -> Iterator[T]:
    """Select at most `number` of `total` items, evenly spaced."""
    number = min(number, total)
    return (item for i, item in enumerate(items) if (i + 1) * number // total > i * number // total)


def write_tokens(
    folder: Path,
    corpora: Corpora,
    vocabularies: Vocabularies,
    recipe: TranslationRecipe,
    all_skipped: SkippedPairs,
    progress: Progress,
) -> None:
    """Tokenise the training corpora into a store."""
    source, target, max_length = vocabularies.source, vocabularies.target, recipe.max_length()
    dropout, source_end = recipe.tokenizer.dropout, recipe.model_settings().source_end
    words = (WordTypes(source), WordTypes(target)) if dropout else None
    annotate = _open_annotation(recipe, source)

    listed = set[int]()

    def tokenise(use: CorpusUse) -> Iterator[ParallelTokens]:
        corpus = replace(corpora.train[use.corpus], reverse=use.reverse, tag=use.tag)
        skipped = SkippedPairs() if use.corpus in listed else all_skipped  # each pair is listed once
        listed.add(use.corpus)
        before, kept = dict(skipped.counts), 0
        entries = progress.track(corpus.records(), "tokenising")
        tag = source.find_token(corpus.tag) if corpus.tag else None
        for chunk in tokenise_corpus(entries, source, target, max_length, skipped, words, tag, source_end, annotate):
            kept += len(chunk)
            yield chunk
        if not kept:
            reasons = ", ".join(f"{n - before.get(why, 0):,} have {why}" for why, n in skipped.counts.items())
            raise UserError(f"{corpus.name}: no training pair is left with data.max_length={max_length}: {reasons}")

    largest = {"source": len(source) - 1, "target": len(target) - 1}
    if any(corpus.alignments for corpus in corpora.train):
        largest["links"] = max_length or 2**31
    largest |= dict.fromkeys(WORDS if dropout else (), 2**32 - 1)

    def sample() -> dict[str, RaggedArray]:
        return {name: side.segmentations(dropout) for name, side in zip(SEGMENTATIONS, words or (), strict=False)}

    write_token_store(folder, map(tokenise, recipe.data.uses()), largest, sample)
    if annotate is not None:
        if not annotate.count:
            progress.print("warning: no training pair has a term of data.glossary_augment.file and its translation")
        else:
            progress.print(f"terms are annotated in {counted(annotate.count, 'training pair')}")


def _open_annotation(recipe: TranslationRecipe, source: Tokenizer) -> TermAnnotation | None:
    """Return the annotation of training sources, if the recipe has one."""
    settings = recipe.data.glossary_augment
    if settings is None:
        return None
    glossary = Glossary.read(settings.file)
    return TermAnnotation(glossary, recipe.data.language_pair()[0], source, settings.share)


def _in_all_directions(data: DataSettings, pairs: Iterable[tuple[int, Pair]]) -> list[Pair]:
    """Return the validation pairs of the numbered corpora in every direction; sources start with its token."""
    if not data.directions:
        return [pair for _, pair in pairs]
    uses = data.uses()
    return [
        Pair(f"{use.tag} {pair.target}", pair.source) if use.reverse else Pair(f"{use.tag} {pair.source}", pair.target)
        for number, pair in pairs
        for use in uses
        if use.corpus == number
    ]


def _select_valid_pairs(
    pairs: list[Pair], vocabularies: Vocabularies, recipe: TranslationRecipe, skipped: SkippedPairs
) -> list[Pair]:
    """Return the validation pairs for which the model has enough positions."""
    limit = recipe.max_positions()
    kept = []
    sides = (
        vocabularies.source.encode_batch([p.source for p in pairs]),
        vocabularies.target.encode_batch([p.target for p in pairs]),
    )
    for line, (pair, source, target) in enumerate(zip(pairs, *sides, strict=True), start=1):
        if limit is not None and max(len(source), len(target)) >= limit:
            record, reason = PairRecord(pair, "validation", line), f"over {limit} tokens in validation"
            skipped.add(record, reason, len(source), len(target))
        else:
            kept.append(pair)
    if not any(pair.source.strip() and pair.target.strip() for pair in kept):
        raise UserError(f"none of the {len(pairs)} validation pairs has two sides that this model can read")
    return kept
