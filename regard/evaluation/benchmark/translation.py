"""Speed of translators, from text to text."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from regard.data.text.readers import read_lines, read_parallel
from regard.decoding.settings import DecodingSettings, parse_settings
from regard.errors import prefix_errors
from regard.evaluation.benchmark.harness import Result, SpeedReport, measure_speed, share_of_same, split_options
from regard.evaluation.metrics import bleu
from regard.pipelines.translator import Translator

TIMED = "from text to text: tokenisation, search and detokenisation"
SENTENCES = 256
"""Number of sentences if none are given."""
LONGEST = 16
"""Maximum number of tokens of a random sentence."""
Loader = Callable[..., Translator]


@dataclass(frozen=True)
class TranslationSystem:
    """A translator with its search settings."""

    name: str
    translator: Translator
    settings: DecodingSettings

    @classmethod
    def open(cls, text: str, device: str | torch.device = "cpu", load: Loader = Translator.load) -> Self:
        """Load "RUN", or "RUN:beam=5" or "RUN:iterations=4,lengths=3" with search settings.

        Args:
            text: Path and settings. The settings "engine" and "precision" are passed to `load`.
        """
        path, values = split_options(text)
        options = {key: values.pop(key) for key in ("engine", "precision") if key in values}
        translator = load(path, device=device, **options)
        settings = parse_settings(translator.generator.settings_class, values, text)
        with prefix_errors(text):
            return cls(text, translator, translator.resolve_settings(settings))

    def translate(self, sources: Sequence[str]) -> list[str]:
        return [
            best[0].text.replace("\n", " ") for best in self.translator.hypotheses(sources, self.settings, split=False)
        ]


@dataclass(frozen=True)
class Sentences:
    """Source sentences, references if there are any, and a description."""

    sources: list[str]
    references: list[str] | None
    description: str

    @classmethod
    def read(cls, src: Path, ref: Path | None) -> Self:
        """Read files of sentences and of references."""
        if ref is None:
            sources = list(read_lines(src))
            return cls(sources, None, f"{len(sources):,} sentences of {src}")
        pairs = list(read_parallel(src, ref))
        return cls([p.source for p in pairs], [p.target for p in pairs], f"{len(pairs):,} sentences of {src}")

    @classmethod
    def random(cls, translator: Translator) -> Self:
        """Return sentences of random tokens of a model's vocabulary, always the same."""
        tokenizer, config = translator.vocabularies.source, translator.model.config
        limit = (config.max_positions or sys.maxsize) - 1
        special = {config.pad, config.bos, config.eos}
        ids = torch.tensor([i for i in range(config.source_vocab) if i not in special] or [config.eos])
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(1, max(1, min(limit, LONGEST)) + 1, (2 * SENTENCES,), generator=generator).tolist()
        rows = [ids[torch.randint(len(ids), (length,), generator=generator)].tolist() for length in lengths]
        texts = [text for text in map(tokenizer.decode, rows) if text.strip() and "\n" not in text]
        usable = [text for text in texts if len(tokenizer.encode(text)) <= limit][:SENTENCES]
        return cls(usable, None, f"{len(usable):,} sentences of random tokens")


def benchmark_translators(
    systems: Sequence[TranslationSystem],
    sentences: Sentences,
    batch_sizes: Sequence[int],
    seconds: float,
    tokenisation: str = "13a",
    compare: bool = False,
) -> SpeedReport:
    """Time translators for some seconds at every batch size, and score them if there are references.

    With `compare`, also report how often the translations equal those of the first system.
    """
    functions = [system.translate for system in systems]
    by_size = [measure_speed(functions, sentences.sources, size, seconds) for size in batch_sizes]
    results: list[Result] = []
    first: list[str] = []
    for system, timings in zip(systems, zip(*by_size, strict=True), strict=True):
        needed = compare or sentences.references is not None
        translations = system.translate(sentences.sources) if needed else []
        first = first or translations
        score = None if sentences.references is None else bleu(translations, sentences.references, tokenisation)
        same = share_of_same(translations, first) if compare else None
        parameters = system.translator.count_parameters(system.settings)
        results.append(Result(system.name, system.settings.resolved(), parameters, list(timings), score, same))
    return SpeedReport(results, TIMED, sentences.description, seconds)
