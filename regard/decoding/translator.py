"""`Translator`: a model folder put to work. The only place where text meets a translation model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.attention import unobserved
from regard.decoding.search import SearchSettings, search
from regard.decoding.stepper import TransformerStepper, pad_rows
from regard.errors import UserError
from regard.models.folder import find_model, load_model, read_config, save_model
from regard.models.transformer import Transformer
from regard.text.tokenizer import Tokenizer

JOINT, SOURCE, TARGET = "tokenizer.json", "source.tokenizer.json", "target.tokenizer.json"
BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Vocabularies:
    """The tokenizer of each side; one and the same object where the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def save(self, folder: Path) -> None:
        if self.joint:
            self.source.save(folder / JOINT)
        else:
            self.source.save(folder / SOURCE)
            self.target.save(folder / TARGET)

    @classmethod
    def load(cls, folder: Path) -> Vocabularies:
        if (folder / SOURCE).exists() or (folder / TARGET).exists():
            return cls(Tokenizer.load(folder / SOURCE), Tokenizer.load(folder / TARGET))
        joint = Tokenizer.load(folder / JOINT)
        return cls(joint, joint)


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence."""

    text: str
    score: float
    tokens: list[int]
    pieces: list[str]
    log_probabilities: list[float]


class Translator:
    """Translates text with a trained model.

    `translator(text)` gives the best translation, of a string or of every string in a list; `hypotheses` gives the
    n best with their scores.
    """

    def __init__(
        self, model: Transformer, vocabularies: Vocabularies, languages: tuple[str, str] = ("source", "target")
    ) -> None:
        self.model, self.vocabularies, self.languages = model, vocabularies, languages
        self._stepper = TransformerStepper(model)

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> Translator:
        """Loads a model folder, or the best model of a training run.

        Raises:
            UserError: a file is missing or damaged, or the files do not belong together.
        """
        folder = find_model(Path(path))
        read_config(folder)
        vocabularies = Vocabularies.load(folder)
        model, about = load_model(folder, device)
        rows = (model.config.source_vocab, model.config.target_vocab)
        if (len(vocabularies.source), len(vocabularies.target)) != rows:
            raise UserError(
                f"{folder}: the tokenizer has {len(vocabularies.source)} and {len(vocabularies.target)} pieces, the "
                f"model {rows[0]} and {rows[1]} rows; they were not saved together"
            )
        source, target = about.get("languages", ("source", "target"))
        return cls(model, vocabularies, (source, target))

    def save(self, folder: Path, about: dict[str, Any] | None = None) -> None:
        """Writes config.json, model.safetensors and the tokenizer into an existing folder."""
        self.vocabularies.save(folder)
        save_model(folder, self.model, {"languages": list(self.languages)} | (about or {}))

    def __call__(self, text: str | Sequence[str], **search: Any) -> Any:
        """The best translation of a string, or of every string in a list.

        Keywords are those of `SearchSettings`, such as beam=4. With n_best the answer is hypotheses with their scores,
        best first, in place of each string.
        """
        settings = SearchSettings.parse(search, "translate")
        found = self.hypotheses([text] if isinstance(text, str) else text, settings)
        answers = found if "n_best" in search else [best[0].text for best in found]
        return answers[0] if isinstance(text, str) else answers

    def hypotheses(self, texts: Sequence[str], settings: SearchSettings | None = None) -> list[list[Hypothesis]]:
        """The n best translations of every text, best first; a blank text has itself as its only translation."""
        settings = settings or SearchSettings()
        encoded = self.vocabularies.source.encode_batch(list(texts))
        self._check_lengths(encoded)
        results: list[list[Hypothesis]] = [[Hypothesis(text, 0.0, [], [], [])] for text in texts]
        filled = [i for i, text in enumerate(texts) if text.strip()]
        training = self.model.training
        self.model.eval()
        try:
            with unobserved(self.model) as observed:
                for batch in batches_by_tokens(filled, encoded, BATCH_TOKENS):
                    found = search(self._stepper, [encoded[i] for i in batch], settings)
                    for i, best in zip(batch, found, strict=True):
                        results[i] = [self._hypothesis(f.tokens, f.score, f.log_probabilities) for f in best]
            if observed and filled:
                self.read([encoded[i] for i in filled], [results[i][0].tokens for i in filled])
        finally:
            self.model.train(training)
        return results

    @torch.no_grad()
    def read(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        """The logits of given translations, all positions in one pass: row t is what is said after t target tokens."""
        config = self.model.config
        read, read_layout = pad_rows([[*source, config.eos] for source in sources], config.pad, self._stepper.device)
        said, said_layout = pad_rows([[config.bos, *target] for target in targets], config.pad, self._stepper.device)
        logits: Tensor = self.model(read, said, read_layout, said_layout)
        return logits

    def _hypothesis(self, tokens: list[int], score: float, log_probabilities: list[float]) -> Hypothesis:
        target = self.vocabularies.target
        return Hypothesis(target.decode(tokens), score, tokens, target.pieces(tokens), log_probabilities)

    def _check_lengths(self, encoded: Sequence[Sequence[int]]) -> None:
        config = self.model.config
        if config.positions != "learned":
            return
        for i, tokens in enumerate(encoded):
            if len(tokens) + 1 > config.max_length:
                raise UserError(
                    f"sentence {i + 1} has {len(tokens)} tokens, but this model's learned positions end at "
                    f"{config.max_length - 1}; split it, or train a model with sinusoidal or rotary positions"
                )


def batches_by_tokens(indices: Sequence[int], encoded: Sequence[Sequence[int]], tokens: int) -> Iterator[list[int]]:
    """Groups sentences of similar length, the longest first, into batches of at most so many padded tokens."""
    batch: list[int] = []
    for i in sorted(indices, key=lambda i: len(encoded[i]), reverse=True):
        if batch and (len(batch) + 1) * (len(encoded[batch[0]]) + 1) > tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
