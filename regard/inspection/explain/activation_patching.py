"""Activation patching between two sentences: which state carries the difference between their translations.

Shapes: L layers, N positions, W width, B rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.inspection.explain.integrated_gradients import rows_per_pass
from regard.inspection.explain.lens import record_states
from regard.inspection.explain.scoring import WordScore, evaluation_mode
from regard.inspection.explain.target_word import TargetWord, Tokens, check_explainable, choose_alternative, choose_word
from regard.inspection.translation import check_not_blank
from regard.inspection.words import display_width, label_tokens
from regard.models.transformer import Transformer

Floats = npt.NDArray[np.floating]
DIGITS = 4
MAX_TOKENS = 128
"""Tokens of a sentence; every state of every layer is copied in a pass of its own."""
SMALLEST_DIFFERENCE = 0.1
"""Difference of the two scores, in nats, below which there is nothing to restore."""


@dataclass(frozen=True)
class PatchingMap:
    """How much of the difference between two sentences each state restores; layer 0 is the embedding.

    The score is the difference of the log-probabilities of the two words after the same prefix. A share of 0 is the
    score of the other sentence, 1 that of the sentence.

    Attributes:
        word, contrast: The word of the translation, and the word that the other sentence makes more probable.
        source, other_source: Tokens of both sentences, with END.
        prefix: Tokens before the word, with BOS.
        score, other_score: Score of the word given each sentence.
        encoder: Share that the encoder state of one position restores, (L + 1, source tokens).
        decoder: Share that the decoder state of one position restores, (L + 1, prefix tokens).
    """

    word: str
    contrast: str
    source: list[str]
    other_source: list[str]
    prefix: list[str]
    score: float
    other_score: float
    encoder: Floats
    decoder: Floats

    def to_json(self) -> dict[str, Any]:
        """Return both maps for the pages."""
        maps = {"encoder": self.encoder.round(DIGITS).tolist(), "decoder": self.decoder.round(DIGITS).tolist()}
        scores = {"score": round(self.score, DIGITS), "other_score": round(self.other_score, DIGITS)}
        names = ("word", "contrast", "source", "other_source", "prefix")
        return {name: getattr(self, name) for name in names} | scores | maps

    def __str__(self) -> str:
        """Return both maps as tables of percentages."""
        lines = [
            f"{self.word} rather than {self.contrast}: {self.score:+.3f} for this sentence, {self.other_score:+.3f} "
            f"for the other; share of the difference that one state restores"
        ]
        for stack, labels, shares in (("encoder", self.source, self.encoder), ("decoder", self.prefix, self.decoder)):
            widths = [max(5, display_width(label)) for label in labels]
            header = "".join(
                " " * (2 + width - display_width(label)) + label for label, width in zip(labels, widths, strict=True)
            )
            lines.append(f"  {stack:11}{header}")
            names = ["embedding", *(f"layer {layer}" for layer in range(len(shares) - 1))]
            for name, row in zip(names, shares, strict=True):
                numbers = "".join(f"  {share:{width}.0%}" for share, width in zip(row, widths, strict=True))
                lines.append(f"    {name:9}{numbers}")
        return "\n".join(lines)


@torch.no_grad()
def patch_activations(
    translator: Any,
    sentence: str,
    other: str,
    word: str | int,
    contrast: str | None = None,
    target: Tokens | None = None,
) -> PatchingMap:
    """Copy single states of a sentence into the run of another one, and measure which restore a word.

    Args:
        translator: A `Translator` with one autoregressive model.
        sentence: The sentence that is translated.
        other: A sentence with as many tokens that differs in a few of them.
        word: Text that occurs in the translation of `sentence`, END, or the position of a token, counted from 1.
        contrast: The word to compare with. Defaults to the token that `other` makes most probable in its place.
        target: Token ids of the translation, without END. Defaults to the best translation of the model.

    Raises:
        UserError: The sentences have different numbers of tokens, or do not differ in the word.
    """
    model = check_explainable(translator)
    check_not_blank(other)
    chosen = choose_word(translator, sentence, word, target)
    other_word = _replace_source(translator, chosen, other)
    pieces, label = _choose_contrast(translator, model, chosen, other_word, contrast)
    clean, corrupted = (WordScore(model, one, pieces) for one in (chosen, other_word))
    with evaluation_mode(model):
        clean_inputs, corrupted_inputs = clean.embed(), corrupted.embed()
        with record_states(model) as states:
            clean_score = float(clean(clean_inputs[None]))
        corrupted_score = float(corrupted(corrupted_inputs[None]))
        _check_difference(clean_score - corrupted_score, chosen.label, label)
        # A score needs two forward passes, of the word and of its contrast. Both are patched with the states of the
        # first: the encoder reads the same source, and on the prefix causality makes the decoder states equal.
        encoder_states = states.encoder[1 : len(model.encoder) + 1]
        decoder_states = states.decoder[1 : len(model.decoder) + 1]
        S, P = len(chosen.source), len(chosen.prefix)
        encoder = [
            _patch_embeddings(corrupted, clean_inputs, corrupted_inputs, S),
            *_patch_blocks(model.encoder, encoder_states, corrupted, corrupted_inputs, S),
        ]
        decoder = [
            np.full(P, corrupted_score),  # both runs read the same prefix, so its embeddings restore nothing
            *_patch_blocks(model.decoder, decoder_states, corrupted, corrupted_inputs, P),
        ]
    config, vocabularies = model.config, translator.vocabularies
    return PatchingMap(
        word=chosen.label,
        contrast=label,
        source=label_tokens(vocabularies.source, chosen.source, config),
        other_source=label_tokens(vocabularies.source, other_word.source, config),
        prefix=label_tokens(vocabularies.target, chosen.prefix, config),
        score=clean_score,
        other_score=corrupted_score,
        encoder=_restored_shares(encoder, clean_score, corrupted_score),
        decoder=_restored_shares(decoder, clean_score, corrupted_score),
    )


def _check_difference(difference: float, word: str, contrast: str) -> None:
    if abs(difference) < SMALLEST_DIFFERENCE:
        raise UserError(f"both sentences prefer {word} to {contrast} alike; choose a word whose translation differs")


def _replace_source(translator: Any, word: TargetWord, other: str) -> TargetWord:
    """Return the word after the same prefix, given another sentence."""
    source = tuple(translator.model.config.source_tokens(translator.vocabularies.source.encode(other)))
    if len(source) != len(word.source):
        raise UserError(
            f"{word.sentence!r} has {len(word.source) - 1} tokens and {other!r} has {len(source) - 1}; states are "
            f"copied position by position, so give a sentence with as many tokens"
        )
    if len(source) > MAX_TOKENS:
        raise UserError(f"activation patching is for at most {MAX_TOKENS} tokens, and the sentence has {len(source)}")
    if source == word.source:
        raise UserError("both sentences are the same; give one that differs in a word")
    return TargetWord(other, source, word.prefix, word.pieces, word.label, word.start, word.target)


def _choose_contrast(
    translator: Any, model: Transformer, word: TargetWord, other_word: TargetWord, contrast: str | None
) -> tuple[tuple[int, ...], str]:
    """Return the tokens and the label of the given contrast, or of the word that the other sentence prefers."""
    if contrast is None:
        return _most_probable(translator, model, other_word)
    return choose_alternative(translator, word, contrast)


def _most_probable(translator: Any, model: Transformer, word: TargetWord) -> tuple[tuple[int, ...], str]:
    """Return the most probable next token other than the first piece of the word."""
    device = model.target_embedding.weight.device
    with evaluation_mode(model):
        logits = model(torch.tensor([word.source], device=device), torch.tensor([word.prefix], device=device))[0, -1]
    logits[word.pieces[0]] = -torch.inf
    token = int(logits.argmax())
    return (token,), label_tokens(translator.vocabularies.target, [token], model.config)[0]


def _patch_embeddings(score: WordScore, clean_inputs: Tensor, inputs: Tensor, positions: int) -> Floats:
    """Return the score with the embedding of each of the first positions replaced by that of the clean sentence."""
    rows = inputs.repeat(positions, 1, 1)
    rows[range(positions), range(positions)] = clean_inputs[:positions]
    return _score_rows(score, rows)


def _patch_blocks(
    modules: Iterable[nn.Module], states: Sequence[Tensor], score: WordScore, inputs: Tensor, positions: int
) -> Iterator[Floats]:
    """Yield, for each module, the score with its output replaced at each of the first positions."""
    rows = rows_per_pass(len(inputs))
    for module, state in zip(modules, states, strict=True):
        scores = []
        for first in range(0, positions, rows):
            batch = inputs.expand(min(rows, positions - first), -1, -1)
            with _replace_one_position_per_row(module, state, first):
                scores.append(_score_rows(score, batch))
        yield np.concatenate(scores)


def _restored_shares(scores: Sequence[Floats], clean_score: float, corrupted_score: float) -> Floats:
    """Return which share of the difference between both sentences the scores of patched runs restore."""
    shares: Floats = (np.stack(scores) - corrupted_score) / (clean_score - corrupted_score)
    return shares


def _score_rows(score: WordScore, x_BNW: Tensor) -> Floats:
    parts = [score(part) for part in torch.split(x_BNW, rows_per_pass(x_BNW.shape[1]))]
    scores: Floats = torch.cat(parts).double().cpu().numpy()
    return scores


@contextmanager
def _replace_one_position_per_row(module: nn.Module, state: Tensor, first: int) -> Iterator[None]:
    """Replaces, within the block, position first + i of the output by that of `state`, (1, N, W), in row i."""

    def replace(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        patched = output.clone()
        rows = torch.arange(len(output), device=output.device)
        patched[rows, first + rows] = state[0, first + rows]
        return patched

    handle = module.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
