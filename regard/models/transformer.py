"""The encoder-decoder Transformer of "Attention Is All You Need" and its common variants.

Shapes: B batch, S source tokens, T target tokens, W width, V vocabulary. A packed batch is a single row (B = 1).
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.kinds import AttentionSettings, Cache, Full, FullSettings, KeyValues
from regard.attention.multi_head import Attention, Rotary
from regard.config import Settings
from regard.layers import Activation, DecoderBlock, Diagonal, EncoderBlock, FeedForward, Learned, Model, Sinusoidal
from regard.masks import Layout, Mask, Padded
from regard.ops import dispatch, fused
from regard.ops.dropout import Dropout
from regard.ops.embedding import CUT_OFF
from regard.ops.linear import PrepackedWeights, linear


class EncoderDecoderConfig(Settings):
    """Configuration of an encoder and a decoder. The defaults are the base model of the paper."""

    source_vocab: int = Field(gt=0)
    target_vocab: int = Field(gt=0)
    width: int = Field(512, gt=0)
    heads: int = Field(8, gt=0)
    encoder_layers: int = Field(6, ge=0, le=1000)
    decoder_layers: int = Field(6, gt=0, le=1000)
    hidden: int = Field(2048, gt=0, description="hidden features of the feed-forward layers")
    activation: Activation = "relu"
    norm: Literal["post", "pre"] = "post"
    final_norm: bool | None = Field(None, description="a norm after each stack; by default only if norm is 'pre'")
    norm_eps: float = Field(1e-5, gt=0)
    positions: Literal["sinusoidal", "sinusoidal-halves", "learned", "rotary", "diagonal", "diagonal-scaled"] = Field(
        "sinusoidal",
        description="sinusoidal interleaves sines and cosines, sinusoidal-halves has all sines first; for teaching, "
        "diagonal adds the p-th unit vector at position p, diagonal-scaled p times this vector",
    )
    max_length: int = Field(512, gt=0, description="number of learned positions; diagonal ones end at the width")
    tie: Literal["all", "target", "none"] = Field(
        "all", description="which embeddings share weights: source, target and output; target and output; or none"
    )
    output_bias: bool = Field(False, description="a bias on the logits, as in Marian models")
    source_end: bool = Field(
        True, description="whether END follows the source; false for imported models of OpenNMT, such as Argos packages"
    )
    attention: AttentionSettings = Field(
        FullSettings(), description="kind of self-attention: full, local, linear or routing, with its own keys"
    )
    qkv_bias: bool = True
    qk_scale: float | None = None
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout of the output of each sublayer")
    embedding_dropout: float | None = Field(
        None, ge=0, lt=1, description="dropout of embeddings with positions; equal to dropout by default"
    )
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of attention weights")
    hidden_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the hidden features of feed-forward layers")
    pad: int = 0
    bos: int = 1
    eos: int = 2

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        for name in ("pad", "bos", "eos"):
            if not 0 <= getattr(self, name) < min(self.source_vocab, self.target_vocab):
                raise ValueError(f"{name} {getattr(self, name)} is not in the vocabulary")
        if self.positions.startswith("sinusoidal") and self.width % 2:
            raise ValueError(f"sinusoidal positions need an even width, not {self.width}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(f"rotary positions need an even head width, not {self.width // self.heads}")
        self.attention.check(self.qk_scale, self.attention_dropout)
        if self.tie == "all" and self.source_vocab != self.target_vocab:
            raise ValueError(
                f"tie 'all' needs one vocabulary for both sides, not {self.source_vocab} and {self.target_vocab} tokens"
            )
        return self

    @property
    def max_positions(self) -> int | None:
        """Maximum number of tokens of a sequence; None if there is no limit."""
        return {"learned": self.max_length, "diagonal": self.width, "diagonal-scaled": self.width}.get(self.positions)

    @property
    def has_final_norm(self) -> bool:
        return self.norm == "pre" if self.final_norm is None else self.final_norm

    def source_tokens(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that the encoder receives for a tokenised text: with END, unless `source_end` is false."""
        return [*tokens, self.eos] if self.source_end or not tokens else list(tokens)

    def source_length(self, tokens: Sequence[int]) -> int:
        """Return the number of `source_tokens`."""
        return len(tokens) + (self.source_end or not tokens)

    @classmethod
    def base(cls, vocab: int | tuple[int, int], **changes: Any) -> Self:
        """Return the base model of the paper; `vocab` is the size of a joint vocabulary, or (source, target)."""
        source, target = (vocab, vocab) if isinstance(vocab, int) else vocab
        separate: dict[str, Any] = {} if isinstance(vocab, int) else {"tie": "target"}
        return cls.parse({"source_vocab": source, "target_vocab": target} | separate | changes, cls.__name__)

    @classmethod
    def big(cls, vocab: int | tuple[int, int], **changes: Any) -> Self:
        return cls.base(vocab, **{"width": 1024, "heads": 16, "hidden": 4096, "dropout": 0.3} | changes)

    @classmethod
    def small(cls, vocab: int | tuple[int, int], **changes: Any) -> Self:
        layers = {"encoder_layers": 3, "decoder_layers": 3}
        return cls.base(vocab, **{"width": 256, "heads": 4, "hidden": 1024, **layers} | changes)

    @classmethod
    def tiny(cls, vocab: int | tuple[int, int], **changes: Any) -> Self:
        layers = {"encoder_layers": 4, "decoder_layers": 4}
        return cls.base(vocab, **{"width": 128, "heads": 4, "hidden": 256, **layers, "norm": "pre"} | changes)


class TransformerConfig(EncoderDecoderConfig):
    """Configuration of a `Transformer`."""

    kind: Literal["transformer"] = "transformer"


class Embedding(nn.Module):
    """Token embeddings, scaled by √W, with positions added unless these are rotary."""

    def __init__(self, vocab: int, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, config.width))
        nn.init.normal_(self.weight, std=config.width**-0.5)
        self.scale = math.sqrt(config.width)
        self.max_positions = config.max_positions
        self.positions: Sinusoidal | Learned | Diagonal | None = None
        if config.positions == "sinusoidal":
            self.positions = Sinusoidal(config.width)
        elif config.positions == "sinusoidal-halves":
            self.positions = Sinusoidal(config.width, "halves")
        elif config.positions == "learned":
            self.positions = Learned(config.max_length, config.width)
        elif config.positions in ("diagonal", "diagonal-scaled"):
            self.positions = Diagonal(config.width, scaled=config.positions == "diagonal-scaled")
        self.dropout = Dropout(config.dropout if config.embedding_dropout is None else config.embedding_dropout)

    def forward(self, tokens: Tensor, positions: Tensor, longest: int, dtype: torch.dtype | None = None) -> Tensor:
        """Embed tokens, (B, T) to (B, T, W).

        Args:
            tokens: Token indices.
            positions: Position of each token in its sequence, (B, T) or (1, T).
            longest: Upper bound of the positions, known without reading the tensor.
            dtype: dtype of the result; that of the weight by default.
        """
        if dispatch.fused_embedding_applies(self, tokens):
            return fused.embedding(self, tokens, positions, longest, dtype)
        x = self._vectors(tokens) * self.scale
        if self.positions is not None:
            x = x + self.positions(positions, longest)
        if self.training:
            x = self.dropout(x)
        return x if dtype is None else x.to(dtype)

    def _vectors(self, tokens: Tensor) -> Tensor:
        """Return the row of the table for each token, (B, T, W); in training, zeros for `CUT_OFF`."""
        if not self.training:
            return F.embedding(tokens, self.weight)
        cut_off = tokens == CUT_OFF
        return F.embedding(tokens.masked_fill(cut_off, 0), self.weight).masked_fill(cut_off[..., None], 0.0)


class DecoderState:
    """State of incremental decoding with K hypotheses per sentence.

    All hypotheses of a sentence share one row of each cache. Every step appends K tokens to it, and `ancestry` marks
    the tokens of each hypothesis, so that beam search never moves a key. The first token is the same for all hypotheses
    of a sentence and is stored once.

    Args:
        blocks: Decoder blocks, or functions with their arguments.
        source: Keys and values of the encoder output for each block.
        source_mask: Mask over the encoder output.
        caches: Cache of the self-attention of each block.
        beam_width: Number of hypotheses per sentence, K.
    """

    def __init__(
        self,
        blocks: Sequence[Callable[..., Tensor]],
        source: Sequence[KeyValues],
        source_mask: Mask,
        caches: Sequence[Cache],
        beam_width: int = 1,
    ) -> None:
        self.blocks, self.source, self.source_mask = blocks, source, source_mask
        self.caches, self.beam_width = caches, beam_width
        self.position = 0  # number of tokens in each hypothesis
        self.ancestry: Tensor | None = None  # (B, K, stored tokens); None while hypotheses do not differ

    @property
    def max_length(self) -> int:
        """Upper bound of the number of tokens after the next step, known without reading a tensor."""
        return self.position + 1

    def begin_step(self, tokens_BK: Tensor) -> tuple[Tensor, Tensor, Mask]:
        """Return the tokens to decode, (B, K), or (B, 1) if they are the same, their positions and their mask."""
        B, K = tokens_BK.shape
        if self.beam_width != K:
            raise ValueError(f"the state has {self.beam_width} hypotheses per sentence, but there are {K} tokens")
        positions = torch.full((1, K), self.position, device=tokens_BK.device)
        if K == 1:
            return tokens_BK, positions, Mask(causal=True)
        if self.position == 0:
            self.ancestry = torch.ones(B, K, 1, dtype=torch.bool, device=tokens_BK.device)
            return tokens_BK[:, :1], positions[:, :1], Mask(causal=True)
        assert self.ancestry is not None
        own = torch.eye(K, dtype=torch.bool, device=tokens_BK.device).expand(B, -1, -1)
        self.ancestry = torch.cat((self.ancestry, own), 2)
        return tokens_BK, positions, Mask(allowed=self.ancestry[:, None], beam_width=K)

    def end_step(self) -> None:
        """Count the tokens of the current step."""
        self.position += 1

    def select(self, rows: Tensor) -> "DecoderState":
        """Return the state of the given hypotheses, (sentences · K,); a sentence keeps all of its K rows or none."""
        K, sentences = self.beam_width, rows[:: self.beam_width] // self.beam_width
        source, mask, remaining = self.source, self.source_mask, None
        if K == 1 or len(sentences) != len(source[0].keys):
            assert mask.keys is None or isinstance(mask.keys, Padded)
            source, remaining = [keys_values.select(sentences) for keys_values in source], sentences
            mask = Mask(keys=None if mask.keys is None else mask.keys.select(sentences))
        caches = [cache.reorder(rows, remaining) for cache in self.caches]
        state = DecoderState(self.blocks, source, mask, caches, K)
        state.position = self.position
        if self.ancestry is not None:
            state.ancestry = self.ancestry.flatten(0, 1)[rows].view(-1, K, self.ancestry.shape[2])
        return state


class EncoderDecoder(Model):
    """Base class of `Transformer` and `NATransformer`: embeddings, encoder, decoder stack and output layer.

    Attributes:
        residual_dtype: dtype of the residual stream in training under autocast; that of the weights by default.
        prepacked: Weights prepacked for inference on a CPU; `regard.ops.linear.prepack` sets it.
    """

    input_type = "text"
    config: EncoderDecoderConfig
    prepacked: PrepackedWeights | None = None

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.residual_dtype: torch.dtype | None = None
        self.source_embedding = Embedding(config.source_vocab, config)
        self.target_embedding = (
            self._tied_embedding() if config.tie == "all" else Embedding(config.target_vocab, config)
        )
        self.encoder = nn.ModuleList(self._encoder_block() for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(self._decoder_block() for _ in range(config.decoder_layers))
        self.encoder_norm = self._final_norm()
        self.decoder_norm = self._final_norm()
        if config.tie == "none":
            self.output = nn.Parameter(torch.empty(config.target_vocab, config.width))
            nn.init.normal_(self.output, std=config.width**-0.5)
        self.output_bias = nn.Parameter(torch.zeros(config.target_vocab)) if config.output_bias else None

    def encode(self, source: Tensor, layout: Layout | None = None) -> Tensor:
        """Encode source tokens, (B, S) to (B, S, W)."""
        positions, longest = token_positions(source, layout)
        mask = Mask.between(layout, layout)
        x = self.source_embedding(source, positions, longest, self._residual_dtype_on(source.device))
        for block in self.encoder:
            x = block(x, mask, positions)
        encoder_output: Tensor = self.encoder_norm(x)
        return encoder_output

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of decoder outputs, (..., W) to (..., V)."""
        return linear(x, self.output_weight, self.output_bias, prepacked=self.prepacked)

    @property
    def output_weight(self) -> Tensor:
        """Weight of the output layer, (V, W)."""
        return self.output if self.config.tie == "none" else self.target_embedding.weight

    def _decode(self, x: Tensor, encoder_output: Tensor, mask: Mask, source_mask: Mask, positions: Tensor) -> Tensor:
        """Run the decoder stack on embedded target tokens, (B, T, W)."""
        for block in self.decoder:
            x = block(x, encoder_output, mask, source_mask, positions)
        y: Tensor = self.decoder_norm(x)
        return y

    def _residual_dtype_on(self, device: torch.device) -> torch.dtype | None:
        return self.residual_dtype if torch.is_autocast_enabled(device.type) else None

    def _tied_embedding(self) -> Embedding:
        """Return a second embedding with the same parameters; functional_call does not restore shared modules."""
        parameters: dict[int, Any] = {id(p): p for p in self.source_embedding.parameters()}
        return copy.deepcopy(self.source_embedding, parameters)

    def _encoder_block(self) -> EncoderBlock:
        c = self.config
        return EncoderBlock(self._attention(), self._feed_forward(), c.norm, c.dropout, c.norm_eps)

    def _decoder_block(self) -> DecoderBlock:
        c = self.config
        attention, cross, feed_forward = self._attention(), self._attention(cross=True), self._feed_forward()
        return DecoderBlock(attention, cross, feed_forward, c.norm, c.dropout, c.norm_eps)

    def _attention(self, cross: bool = False) -> Attention:
        """Build an attention; positions of source and target are not comparable, so `cross` is not rotary or local."""
        c, D = self.config, self.config.width // self.config.heads
        rotary = Rotary(D) if c.positions == "rotary" and not cross else None
        kind = Full(c.qk_scale) if cross else c.attention.build(c.heads, D, c.qk_scale)
        return Attention(
            c.width, c.heads, qkv_bias=c.qkv_bias, attention_dropout=c.attention_dropout, rotary=rotary, kind=kind
        )

    def _feed_forward(self) -> FeedForward:
        c = self.config
        return FeedForward(c.width, c.hidden, c.activation, c.hidden_dropout)

    def _final_norm(self) -> nn.Module:
        c = self.config
        return nn.LayerNorm(c.width, c.norm_eps) if c.has_final_norm else nn.Identity()

    def extra_repr(self) -> str:
        settings = {"residual_dtype": self.residual_dtype, "prepacked": self.prepacked and self.prepacked.precision}
        return ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


class Transformer(EncoderDecoder):
    """The autoregressive encoder-decoder: each target token depends on the source and on all earlier target tokens."""

    task = "translation"
    config: TransformerConfig

    def forward(
        self, source: Tensor, target: Tensor, source_layout: Layout | None = None, target_layout: Layout | None = None
    ) -> Tensor:
        """Return the logits of the token after each target token: source (B, S) and target (B, T) to (B, T, V)."""
        encoder_output = self.encode(source, source_layout)
        return self.logits(self.decode(target, encoder_output, target_layout, source_layout))

    def decode(
        self, target: Tensor, encoder_output: Tensor, layout: Layout | None = None, source_layout: Layout | None = None
    ) -> Tensor:
        """Decode target tokens with a causal mask, (B, T) to (B, T, W); `layout` is that of the target."""
        positions, longest = token_positions(target, layout)
        mask, source_mask = Mask.between(layout, layout, causal=True), Mask.between(layout, source_layout)
        x = self.target_embedding(target, positions, longest, self._residual_dtype_on(target.device))
        return self._decode(x, encoder_output, mask, source_mask, positions)

    def start(
        self,
        encoder_output: Tensor,
        layout: Layout | None = None,
        beam_width: int = 1,
        blocks: Sequence[Callable[..., Tensor]] | None = None,
    ) -> DecoderState:
        """Return the state from which `step` decodes an encoder output, (B, S, W), with K = `beam_width` hypotheses.

        `blocks` are functions that `step` calls instead of the decoder blocks.
        """
        decoder = [cast(DecoderBlock, block) for block in self.decoder]
        # Contiguous copies: every step reads all keys and values of a head.
        source = [KeyValues(*(x.contiguous() for x in block.cross.project(encoder_output))) for block in decoder]
        caches = [block.attention.start_cache(beam_width) for block in decoder]
        return DecoderState(decoder if blocks is None else blocks, source, Mask(keys=layout), caches, beam_width)

    def step(self, tokens_BK: Tensor, state: DecoderState) -> Tensor:
        """Append a token to each of K hypotheses per sentence, (B, K); return the logits of the next, (B, K, V).

        `state.blocks` are the decoder blocks, or on a CPU the functions of `decoding/cpu_blocks.py` in their place.
        """
        K = tokens_BK.shape[1]
        tokens_BK, positions, mask = state.begin_step(tokens_BK)
        x = self.target_embedding(tokens_BK, positions, state.max_length)
        for block, source, cache in zip(state.blocks, state.source, state.caches, strict=True):
            x = block(x, source, mask, state.source_mask, positions, cache)
        state.end_step()
        return self.logits(self.decoder_norm(x)).expand(-1, K, -1)


def token_positions(x: Tensor, layout: Layout | None) -> tuple[Tensor, int]:
    """Return the position of each token in its sequence, and an upper bound of the positions."""
    if layout is None:
        return torch.arange(x.shape[1], device=x.device)[None], x.shape[1]
    return layout.positions(), layout.longest
