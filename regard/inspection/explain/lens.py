"""Read the states of all layers as tokens: what a model would predict if it ended after a layer.

Shapes: L layers, T positions, W width, V vocabulary, K tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.inspection.explain.scoring import evaluation_mode
from regard.inspection.explain.target_word import Tokens, check_explainable, translate_tokens
from regard.inspection.translation import check_not_blank, check_target
from regard.inspection.words import label_tokens
from regard.models.transformer import Transformer

DIGITS = 4
Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LayerReadout:
    """The most probable tokens at every position after every layer; layer 0 is the embedding.

    Attributes:
        labels: Label of each position: source tokens for the encoder, predicted tokens for the decoder.
        tokens: Text of the most probable tokens, [layer][position][rank].
        probabilities: Their probabilities, (L + 1, T, K).
        chosen: Probability of the token of the translation, (L + 1, T); of the source token for the encoder.
        ranks: Rank of this token among all, from 1, (L + 1, T).
    """

    labels: list[str]
    tokens: list[list[list[str]]]
    probabilities: Floats
    chosen: Floats
    ranks: Ints

    def next_tokens(self, position: int) -> list[tuple[str, float]]:
        """Return the most probable tokens of the model at a position, with their probabilities."""
        return list(zip(self.tokens[-1][position], self.probabilities[-1, position].tolist(), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return the readout for the pages."""
        return {
            "labels": self.labels,
            "tokens": self.tokens,
            "probabilities": self.probabilities.round(DIGITS).tolist(),
            "chosen": self.chosen.round(DIGITS).tolist(),
            "ranks": self.ranks.tolist(),
        }


@dataclass(frozen=True)
class Lens:
    """The states of both stacks, read as tokens.

    Attributes:
        decoder: States of the decoder, read as the next token of the translation.
        encoder: States of the encoder, read as tokens of the shared vocabulary; None if the output layer has no
            vectors of source tokens.
    """

    decoder: LayerReadout
    encoder: LayerReadout | None


@torch.no_grad()
def read_layers(translator: Any, sentence: str, target: Tokens | None = None, top: int = 5) -> Lens:
    """Read the state after every layer through the final norm and the output layer.

    The last layer of the decoder gives the next-token probabilities of the model itself. Earlier layers were not
    trained to be read, so a token with a low probability there may still be represented.

    Args:
        translator: A `Translator` with one autoregressive model.
        sentence: The sentence that is translated.
        target: Token ids of the translation, without END, read with teacher forcing. Defaults to the best translation.
        top: Number of tokens at every position.
    """
    model = check_explainable(translator)
    if not 1 <= top <= model.config.target_vocab:
        raise UserError(f"top: {top} tokens; choose 1 to {model.config.target_vocab}")
    check_not_blank(sentence)
    target = list(translate_tokens(translator, sentence) if target is None else target)
    check_target(translator, target)
    eos, bos, device = model.config.eos, model.config.bos, model.target_embedding.weight.device
    source = model.config.source_tokens(translator.vocabularies.source.encode(sentence))
    with evaluation_mode(model), record_states(model) as states:
        model(torch.tensor([source], device=device), torch.tensor([[bos, *target]], device=device))
    vocabulary = translator.vocabularies.target
    decoder = _read(model, model.decoder_norm, states.decoder, [*target, eos], vocabulary, top)
    encoder = None
    if model.config.tie == "all":
        encoder = _read(model, model.encoder_norm, states.encoder, source, vocabulary, top)
    return Lens(decoder, encoder)


@dataclass
class States:
    """The embeddings, and the output of each block, (1, T, W) each."""

    encoder: list[Tensor]
    decoder: list[Tensor]


@contextmanager
def record_states(model: Transformer) -> Iterator[States]:
    """Records the states between the blocks of both stacks in every forward pass within the block, in order."""
    states = States([], [])

    def append_to(stack_states: list[Tensor]) -> Any:
        return lambda module, arguments, output: stack_states.append(output.detach())

    with ExitStack() as stack:
        for embedding, blocks, stack_states in (
            (model.source_embedding, model.encoder, states.encoder),
            (model.target_embedding, model.decoder, states.decoder),
        ):
            for module in (embedding, *blocks):
                stack.callback(module.register_forward_hook(append_to(stack_states)).remove)
        yield states


def _read(
    model: Transformer, norm: nn.Module, states: Sequence[Tensor], tokens: Tokens, vocabulary: Any, top: int
) -> LayerReadout:
    """Read states as tokens; the last state is that which the model reads itself."""
    x_LTW = norm(torch.cat(list(states)))
    logits = model.logits(x_LTW)
    log_probs_LTV = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    best = log_probs_LTV.topk(top, -1)
    own = torch.tensor(tokens, device=logits.device).expand(len(states), -1)[..., None]
    chosen_LT1 = log_probs_LTV.gather(2, own)
    texts = [[label_tokens(vocabulary, row, model.config) for row in layer] for layer in best.indices.tolist()]
    return LayerReadout(
        labels=label_tokens(vocabulary, tokens, model.config),
        tokens=texts,
        probabilities=best.values.exp().cpu().double().numpy(),
        chosen=chosen_LT1[..., 0].exp().cpu().double().numpy(),
        ranks=((log_probs_LTV > chosen_LT1).sum(-1) + 1).cpu().numpy(),
    )
