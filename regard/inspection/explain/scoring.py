"""Log-probability of a word of a translation, as a function of the embedded source and prefix.

Shapes: B rows, S source tokens with END, P prefix tokens with BOS, N = S + P, W width.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.inspection.explain.target_word import TargetWord, Tokens, check_explainable, choose_alternative, choose_word
from regard.models.transformer import Embedding, Transformer

Baseline = Literal["pad", "mean", "zero"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)


class WordScore:
    """Scores a word given embedded inputs: its log-probability, or its difference from that of another word.

    For single tokens, the difference of the log-probabilities equals the difference of the logits.

    Args:
        model: The model; its mode is not changed.
        word: The word, its source and its prefix.
        alternative: Tokens of another word; None for the log-probability of the word alone.
    """

    def __init__(self, model: Transformer, word: TargetWord, alternative: Sequence[int] | None = None) -> None:
        self.model, self.word = model, word
        self.candidates = [word.pieces] if alternative is None else [word.pieces, tuple(alternative)]

    def __call__(self, x_BNW: Tensor) -> Tensor:
        """Return the score of embedded inputs, (B, N, W) to (B,): source first, then prefix."""
        S = len(self.word.source)
        signed = zip((1.0, -1.0), self.candidates, strict=False)
        return torch.stack([s * self._log_prob(x_BNW[:, :S], x_BNW[:, S:], pieces) for s, pieces in signed]).sum(0)

    def embed(self) -> Tensor:
        """Return the embedded source and prefix with their positions, (N, W)."""
        with torch.no_grad():
            return torch.cat([self._embed(*side) for side in self._sides()])

    def baseline(self, kind: Baseline) -> Tensor:
        """Return the embedded inputs without information about their words, (N, W).

        The vector of every word is replaced by that of the padding token, which training never reads, by the mean of
        all vectors, or by zeros. Positions, BOS and END are kept.
        """
        if kind not in BASELINES:
            raise UserError(f"baseline: {kind!r} is not one of {', '.join(BASELINES)}")
        with torch.no_grad():
            return torch.cat([self._without_words(*side, kind) for side in self._sides()])

    def _sides(self) -> list[tuple[Embedding, Sequence[int]]]:
        model, word = self.model, self.word
        return [(model.source_embedding, word.source), (model.target_embedding, word.prefix)]

    def _embed(self, embedding: Embedding, tokens: Sequence[int]) -> Tensor:
        ids = torch.tensor([tokens], device=embedding.weight.device)
        x: Tensor = embedding(ids, torch.arange(len(tokens), device=ids.device)[None], len(tokens))[0]
        return x

    def _without_words(self, embedding: Embedding, tokens: Sequence[int], kind: Baseline) -> Tensor:
        config, weight = self.model.config, embedding.weight
        special = {config.bos, config.eos}
        neutral = {"pad": weight[config.pad], "mean": weight.mean(0), "zero": torch.zeros_like(weight[0])}[kind]
        change = [torch.zeros_like(neutral) if t in special else weight[t] - neutral for t in tokens]
        return self._embed(embedding, tokens) - embedding.scale * torch.stack(change)

    def _log_prob(self, source_BSW: Tensor, prefix_BPW: Tensor, pieces: Sequence[int]) -> Tensor:
        """Return the log-probability of consecutive tokens after the prefix, (B,)."""
        B, P, device = len(source_BSW), prefix_BPW.shape[1], source_BSW.device
        source = torch.tensor([self.word.source], device=device).expand(B, -1)
        target = torch.tensor([[*self.word.prefix, *pieces[:-1]]], device=device).expand(B, -1)
        with _replace_embeddings(self.model, source_BSW, prefix_BPW):
            logits = self.model(source, target)[:, P - 1 :]
        chosen = torch.tensor(pieces, device=device).expand(B, -1)[..., None]
        precise = torch.promote_types(logits.dtype, torch.float32)
        log_probs: Tensor = logits.to(precise).log_softmax(-1)
        return log_probs.gather(2, chosen)[..., 0].sum(1)


def score_word(
    translator: Any, sentence: str, word: str | int, contrast: str | None, target: Tokens | None
) -> tuple[WordScore, str | None]:
    """Choose a word of a translation, and return its score and the text of the word that it is compared with."""
    model = check_explainable(translator)
    chosen = choose_word(translator, sentence, word, target)
    pieces, label = (None, None) if contrast is None else choose_alternative(translator, chosen, contrast)
    return WordScore(model, chosen, pieces), label


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switches a model to evaluation mode within the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def _replace_embeddings(model: Transformer, source_BSW: Tensor, prefix_BPW: Tensor) -> Iterator[None]:
    """Replaces the embedded source and the first embedded target tokens within the block."""

    def replace_source(module: nn.Module, arguments: Any, x: Tensor) -> Tensor:
        return source_BSW

    def replace_prefix(module: nn.Module, arguments: Any, x: Tensor) -> Tensor:
        return torch.cat((prefix_BPW, x[:, prefix_BPW.shape[1] :]), 1)

    with ExitStack() as stack:
        for embedding, hook in ((model.source_embedding, replace_source), (model.target_embedding, replace_prefix)):
            stack.callback(embedding.register_forward_hook(hook).remove)
        yield
