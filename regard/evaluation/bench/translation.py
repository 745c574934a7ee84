"""Translators timed from text to text, beside other programs with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from regard.decoding.config import parse_settings
from regard.evaluation.bench.comparison import Race, choose_sizes, naming
from regard.evaluation.bench.sentences import kept_sentences, make_up_sentences, read_sentences
from regard.evaluation.bench.speed import Contender, race, split_options
from regard.pipelines.transformers import load_in_transformers

TIMED = "from text to text: cut into tokens, searched for, joined to text"


def race_translators(
    runs: Sequence[str],
    wanted: Race,
    files: tuple[Path | None, Path | None] = (None, None),
    tokenisation: Callable[[Sequence[str]], str] = lambda languages: "none",
) -> Race:
    """Times the models of runs, and the first of them in other programs.

    Args:
        runs: as `Contender.open` reads them.
        wanted: how they are timed.
        files: source sentences, or else those of the first run are taken; and their references, for BLEU.
        tokenisation: chooses that of BLEU by the target languages.

    Raises:
        UserError: a model, a file, a batch or a peer cannot be had.
    """
    src, ref = files
    sentences = kept_sentences(split_options(runs[0])[0]) if src is None else read_sentences(src, ref)
    if sentences is not None:  # a batch too large is refused before models are loaded
        choose_sizes(wanted.sizes, len(sentences.sources), sentences.said)
    contenders = [Contender.open(run, wanted.device) for run in runs]
    for peer in wanted.peers:
        with naming(peer):
            contenders.append(OPENED[peer](runs[0], wanted.device))
    sentences = sentences or make_up_sentences(contenders[0].translator)
    sizes = choose_sizes(wanted.sizes, len(sentences.sources), sentences.said)
    chosen = tokenisation([one.translator.languages[1] for one in contenders])
    results = race(
        contenders, sentences.sources, sentences.references, sizes, wanted.seconds, chosen, compare=bool(wanted.peers)
    )
    return replace(wanted, sizes=tuple(sizes), results=results, timed=TIMED, on=sentences.said)


def _in_ctranslate2(run: str, device: torch.device) -> Contender:
    values = split_options(run)[1]
    theirs = Contender.open(f"{run}{',' if values else ':'}engine=ctranslate2", device)
    # Its beam ends at the first chance, and to search to the exact end, as ours does unless told, is more work.
    early = "" if values.get("stop") == "first" or theirs.settings.resolved()["beam"] == 1 else ", stop=first"
    return replace(theirs, name=f"{run} in CTranslate2{early}")


def _in_transformers(run: str, device: torch.device) -> Contender:
    path, values = split_options(run)
    asked = {key: value for key, value in values.items() if key not in ("engine", "precision")}
    translator = load_in_transformers(path, device)
    settings = translator.fit(parse_settings(translator.generator.settings_class, asked, run))
    return Contender(f"{run} in transformers", translator, settings)


OPENED: dict[str, Callable[[str, torch.device], Contender]] = {
    "huggingface": _in_transformers,
    "ctranslate2": _in_ctranslate2,
}
