"""The non-autoregressive Transformer (NAT), which predicts all target tokens in parallel.

Encoder and decoder layers are those of the `Transformer`, without the causal mask. The decoder input is the *NAT
target*: one position for every token that may be predicted. An unknown position holds the mask token, to which the
encoder output of the corresponding source position is added; a known position holds its token. The model determines the
number of target tokens in one of four ways:

- "classifier": a classifier predicts the length of the NAT target from the encoder output;
- "end": the NAT target is longer than the output, which is cut at the first END token;
- "ctc": the NAT target is longer than the output; repeated tokens are merged, then blank tokens are removed;
- "dag": the positions are the vertices of a graph, whose transitions are predicted too; the output is a path through it
  (DA-Transformer, Huang et al. 2022).

With `layer_predictions` (DSLP, Huang et al. 2022) each decoder layer predicts all tokens, and the next layer receives
the embeddings of these predictions.

Shapes: B batch, S source tokens, T positions of the NAT target, W width, V vocabulary. A packed batch is a single row
(B = 1).
"""

import math
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.errors import UserError
from regard.layers import Sinusoidal, gather_tokens
from regard.masks import Layout, Mask, Packed
from regard.models.transformer import EncoderDecoder, EncoderDecoderConfig, token_positions
from regard.ops.dag import mask_transitions
from regard.ops.linear import Linear

Ints = npt.NDArray[np.int64]
TargetLength = Literal["classifier", "end", "ctc", "dag"]
LENGTH_FEATURE_SCALE = 1 / 16
"""Scales the sum over the tokens of a typical sentence to about the size of a single vector."""
HASH_MULTIPLIER = 0x1E3779B97F4A7C15  # any large odd number


class NATransformerConfig(EncoderDecoderConfig):
    """Configuration of a `NATransformer`."""

    kind: Literal["nat"] = "nat"
    length: TargetLength = Field(
        "classifier",
        description="target length: predicted by a classifier, cut at END, or determined by CTC or by a path through a "
        "graph (dag)",
    )
    max_length_offset: int = Field(
        128, gt=0, description="for classifier: maximum difference between the lengths of target and source"
    )
    upsample_ratio: int | None = Field(
        None,
        gt=0,
        description="for end, ctc, dag: positions of the NAT target per source token; by default 2, for dag 8",
    )
    upsample_extra: int = Field(4, ge=0, description="for end, ctc, dag: additional positions of the NAT target")
    upsample_mode: Literal["copy", "mask"] = Field(
        "copy",
        description="for end, ctc, dag: encoder output at all positions of a source token, or at the first one, after "
        "which mask tokens are inserted",
    )
    layer_predictions: bool = Field(
        False,
        description="for classifier, end, ctc: each decoder layer receives the predictions of the previous one (DSLP); "
        "needs objective.deep_supervision",
    )

    @model_validator(mode="after")
    def _check_source_end(self) -> Self:
        if not self.source_end:
            raise ValueError("non-autoregressive models need END after the source; omit source_end=false")
        if self.length == "dag" and self.width % 2:
            raise ValueError(f"length 'dag' needs an even width, not {self.width}")
        if self.length == "dag" and self.upsample_extra < 2:
            raise ValueError("length 'dag' needs upsample_extra of at least 2, for the first and the last vertex")
        if self.layer_predictions and self.length == "dag":
            raise ValueError("layer_predictions is for length 'classifier', 'end' or 'ctc', not 'dag'")
        if self.layer_predictions and self.decoder_layers == 1:
            raise ValueError("layer_predictions needs at least 2 decoder layers, not 1")
        return self

    @property
    def upsampling(self) -> int:
        """Positions of the NAT target per source token, except for "classifier"."""
        default = 8 if self.length == "dag" else 2
        return default if self.upsample_ratio is None else self.upsample_ratio

    @property
    def mask_token(self) -> int:
        """Token of unknown positions. BOS has no other use in this model."""
        return self.bos

    @property
    def blank_token(self) -> int:
        """Blank token of CTC. Padding is never predicted otherwise."""
        return self.pad

    @property
    def forbidden_tokens(self) -> list[int]:
        """Special tokens that this model must not predict."""
        allowed = {"end": [self.eos], "ctc": [self.blank_token]}.get(self.length, [])
        return [token for token in (self.pad, self.bos, self.eos) if token not in allowed]

    def check_effect(self) -> None:
        """Check that every setting applies to this way of determining the length."""
        upsampling = ["upsample_ratio", "upsample_extra", "upsample_mode"]
        ignored = upsampling if self.length == "classifier" else ["max_length_offset"]
        for name in ignored:
            if getattr(self, name) != type(self).model_fields[name].default:
                needed = "end, ctc or dag" if self.length == "classifier" else "classifier"
                raise UserError(f"model.{name} is for model.length={needed}, not {self.length}; omit it")

    def clip_lengths(self, lengths: Ints) -> Ints:
        """Limit lengths, (B,), to the number of positions, if it is limited."""
        return lengths if self.max_positions is None else np.minimum(lengths, self.max_positions)

    def upsampled_lengths(self, source_lengths: Ints) -> Ints:
        """Return the lengths of NAT targets, (B,), except for "classifier"; source lengths, (B,), include END."""
        return self.clip_lengths(self.upsampling * source_lengths + self.upsample_extra)


class NATransformer(EncoderDecoder):
    """A non-autoregressive encoder-decoder; see the module docstring."""

    task = "nat"
    config: NATransformerConfig

    def __init__(self, config: NATransformerConfig) -> None:
        super().__init__(config)
        if config.length == "classifier":
            self.length = Linear(config.width, 2 * config.max_length_offset + 1)
            nn.init.zeros_(self.length.weight)
            nn.init.zeros_(self.length.bias)
        if config.length == "dag":
            self.transitions = Transitions(config.width, config.heads)
        if config.layer_predictions:
            self.merge = nn.ModuleList(MergePredictions(config.width) for _ in range(config.decoder_layers - 1))

    def forward(
        self, source: Tensor, target: Tensor, source_layout: Layout | None = None, target_layout: Layout | None = None
    ) -> Tensor:
        """Return the logits of every position of the NAT target: source (B, S) and target (B, T) to (B, T, V)."""
        encoder_output = self.encode(source, source_layout)
        return self.logits(self.decode(target, encoder_output, target_layout, source_layout))

    def decode(
        self, target: Tensor, encoder_output: Tensor, layout: Layout | None = None, source_layout: Layout | None = None
    ) -> Tensor:
        """Decode a NAT target of mask tokens and known tokens, (B, T) to (B, T, W); `layout` is that of the target."""
        if self.config.layer_predictions:
            return self.decode_layers(target, encoder_output, layout, source_layout)[-1]
        x, positions, _ = self._embed(target, encoder_output, layout, source_layout)
        mask, source_mask = Mask.between(layout, layout), Mask.between(layout, source_layout)
        return self._decode(x, encoder_output, mask, source_mask, positions)

    def decode_layers(
        self,
        target: Tensor,
        encoder_output: Tensor,
        layout: Layout | None = None,
        source_layout: Layout | None = None,
        references: Sequence[Tensor] = (),
    ) -> list[Tensor]:
        """Decode a NAT target as `decode` does, and return the output of every decoder layer, each (B, T, W).

        Args:
            target: Mask tokens and known tokens, (B, T).
            encoder_output: (B, S, W).
            layout: Layout of the NAT target.
            source_layout: Layout of the encoder output.
            references: With `layer_predictions`, for each layer except the last one: tokens (B, T) that replace its
                predictions, and negative numbers where these are kept.
        """
        x, positions, longest = self._embed(target, encoder_output, layout, source_layout)
        mask, source_mask = Mask.between(layout, layout), Mask.between(layout, source_layout)
        outputs: list[Tensor] = []
        for i, block in enumerate(self.decoder):
            if outputs and self.config.layer_predictions:
                with torch.no_grad():
                    predicted = self.logits(outputs[-1]).argmax(-1)
                if references:
                    predicted = torch.where(references[i - 1] < 0, predicted, references[i - 1])
                dtype = self._residual_dtype_on(target.device)
                x = self.merge[i - 1](x, self.target_embedding(predicted, positions, longest, dtype))
            x = block(x, encoder_output, mask, source_mask, positions)
            outputs.append(self.decoder_norm(x))
        return outputs

    def _embed(
        self, target: Tensor, encoder_output: Tensor, layout: Layout | None, source_layout: Layout | None
    ) -> tuple[Tensor, Tensor, int]:
        """Return the decoder input, (B, T, W), the position of each token, and an upper bound of the positions."""
        positions, longest = token_positions(target, layout)
        x = self.target_embedding(target, positions, longest, self._residual_dtype_on(target.device))
        receives = target == self.config.mask_token
        if self.config.upsample_mode == "mask":
            receives = receives & starts_source_token(encoder_output, source_layout, x, layout)
        return x + upsample(encoder_output, source_layout, x, layout) * receives[..., None], positions, longest

    def length_logits(self, encoder_output: Tensor, layout: Layout | None = None) -> Tensor:
        """Return the logits of each difference between target and source length, (B, 2 max_length_offset + 1).

        The differences go from -max_length_offset upwards. The classifier reads the sum of the encoder output, because
        the contributions of source tokens to the target length are additive.
        """
        y: Tensor = self.length(sum_tokens(encoder_output, layout) * LENGTH_FEATURE_SCALE)
        return y

    def untrained_lengths(self) -> Tensor:
        """Return which length differences occur in no training pair, (2 max_length_offset + 1,).

        The weights of all differences start equal, and those of absent differences receive equal gradients within
        rounding, which can differ at the end of a matrix. They are the most frequent weights and those close to them.
        """
        rows = torch.cat((self.length.weight, self.length.bias[:, None]), 1).detach()
        hashes = hash_rows(rows)
        most_frequent = rows[(hashes[:, None] == hashes).sum(1).argmax(0, keepdim=True)]
        tolerance = max(1e-5, torch.finfo(rows.dtype).eps) * most_frequent.abs().max()
        absent = (rows - most_frequent).abs().amax(1) <= tolerance
        return absent & (absent.sum() > 1)


class MergePredictions(nn.Module):
    """Adds a linear layer of a decoder layer's output and the embeddings of its predictions; at first it adds zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = Linear(2 * width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor, predicted: Tensor) -> Tensor:
        """Merge the output of a layer, (B, T, W), and embeddings, (B, T, W)."""
        y: Tensor = x + self.linear(torch.cat((x, predicted), -1))
        return y


class Transitions(nn.Module):
    """Predicts the transitions of a graph: heads of attention to later vertices, mixed by a gate of each vertex."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.positions = Sinusoidal(width)
        self.query, self.key = Linear(2 * width, width), Linear(2 * width, width)
        self.gate = Linear(2 * width, heads)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return log-probabilities of the transitions between vertices, (B, T, T); see `regard.ops.dag`.

        Args:
            x: Decoder output, (B, T, W).
            lengths: Number of vertices, (B,).
        """
        B, T, W = x.shape
        x = torch.cat((x, self.positions.up_to(T)[:T].to(x.dtype).expand(B, -1, -1)), -1)
        q_BHTD, k_BHTD = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in (self.query(x), self.key(x)))
        scores = (q_BHTD @ k_BHTD.transpose(2, 3)).float() / math.sqrt(W // self.heads)
        by_head = mask_transitions(scores, lengths).log_softmax(-1)
        gates = self.gate(x).float().log_softmax(-1)
        log_probs: Tensor = (by_head + gates.transpose(1, 2)[..., None]).logsumexp(1)
        return log_probs


def upsample(encoder_output: Tensor, source_layout: Layout | None, target: Tensor, layout: Layout | None) -> Tensor:
    """Distribute the encoder output evenly over the positions of the NAT target.

    Args:
        encoder_output: (B, S, W).
        source_layout: Layout of the encoder output.
        target: Tensor with the shape of the result, (B, T, W).
        layout: Layout of the NAT target.

    Returns:
        The encoder output of the source token that corresponds to each position; zeros for an empty source.
    """
    if not encoder_output.shape[1]:
        return torch.zeros_like(target)
    positions, _ = token_positions(target, layout)
    if source_layout is None and layout is None:
        return encoder_output[:, positions[0] * encoder_output.shape[1] // max(1, target.shape[1])]
    if isinstance(layout, Packed) and isinstance(source_layout, Packed):
        segments = layout.segments()
        lengths = source_layout.lengths[segments]
        source_positions = positions[0] * lengths // layout.lengths[segments]
        index = (source_layout.offsets[:-1][segments] + source_positions).clamp(max=source_layout.size - 1)
        return encoder_output[:, index] * (lengths > 0)[:, None]
    lengths = _lengths(encoder_output, source_layout)[:, None]
    index = positions * lengths // _lengths(target, layout)[:, None].clamp(min=1)
    index = torch.minimum(index, (lengths - 1).clamp(min=0))  # the values of padding positions do not matter
    if encoder_output.is_cuda:  # the backward pass of gather adds repeated tokens in any order there
        rows = torch.arange(len(index), device=index.device)[:, None]
        return encoder_output[rows, index] * (lengths > 0)[..., None]
    return gather_tokens(encoder_output, index) * (lengths > 0)[..., None]


def starts_source_token(
    encoder_output: Tensor, source_layout: Layout | None, target: Tensor, layout: Layout | None
) -> Tensor:
    """Return which positions are the first ones of their source token, (B, T) or (1, T); see `upsample`.

    The arguments are those of `upsample`. Position t belongs to source token t S / T, rounded down.
    """
    positions, _ = token_positions(target, layout)
    S: int | Tensor
    T: int | Tensor
    if isinstance(layout, Packed) and isinstance(source_layout, Packed):
        segments = layout.segments()
        S, T = source_layout.lengths[segments], layout.lengths[segments]
    elif source_layout is None and layout is None:
        S, T = encoder_output.shape[1], max(1, target.shape[1])
    else:
        S, T = _lengths(encoder_output, source_layout)[:, None], _lengths(target, layout)[:, None].clamp(min=1)
    return positions * S % T < S


def sum_tokens(x: Tensor, layout: Layout | None) -> Tensor:
    """Return the sum of the vectors of each sequence, (sequences, W)."""
    if layout is None:
        return x.sum(1)
    if isinstance(layout, Packed):
        # In a fixed order, unlike index_add on a GPU. The offsets are not checked, which would synchronise.
        return torch.segment_reduce(x[0], "sum", offsets=layout.offsets, axis=0, unsafe=True)
    return (x * layout.real()[..., None]).sum(1)


def hash_rows(rows: Tensor) -> Tensor:
    """Return a 64-bit hash of every row, (R, C) to (R,). Integer sums are exact, so equal rows have equal hashes."""
    bits = rows.double().view(torch.int64)
    bits = bits ^ (bits >> 32)  # float32 values differ in the upper half only
    multipliers = torch.arange(1, rows.shape[1] + 1, device=rows.device) * HASH_MULTIPLIER
    # Without this step, columns have the weights 1, 2, 3, ..., and sums of different rows are often equal.
    multipliers = (multipliers ^ (multipliers >> 31)) * HASH_MULTIPLIER
    return (bits * (multipliers | 1)).sum(1)


def _lengths(x: Tensor, layout: Layout | None) -> Tensor:
    """Return the number of tokens of each row, (B,)."""
    return layout.lengths if layout is not None else torch.full((len(x),), x.shape[1], device=x.device)
