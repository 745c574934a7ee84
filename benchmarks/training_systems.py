"""Systems of training.py: variants of `Transformer`, Marian of transformers, and nn.Transformer.

All have the same size, label smoothing, tied embeddings, bfloat16 autocast on a GPU, and fused AdamW. Other libraries
get padded batches of sentences of similar length, which contain little padding; packed batches contain the same
sentences in random order.

The benchmark uses the dropouts of the paper: on embeddings and on the output of each sublayer. nn.Transformer uses its
single rate also for attention weights and within the feed-forward layer.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import stubs  # noqa: F401
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_workload import BOS, END, PAD, Layout

from regard.attention.kinds import Full
from regard.attention.multi_head import Attention
from regard.layers import sinusoid
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops.linear import HalfWeights
from regard.training.cuda_graph import StepGraph
from regard.training.objectives.teacher_forcing import cross_entropy, logits_of_labels, teacher_forcing_loss
from regard.training.parallelism import autocast
from regard.training.text_batches import TextBatch

SMOOTHING = 0.1
PAPER, ALL = "the paper's", "all"
"""Dropouts of a system: those of the paper, or also those that nn.Transformer adds."""


@dataclass(frozen=True)
class Size:
    """Sizes of all models."""

    vocab: int = 32_000
    width: int = 512
    heads: int = 8
    layers: int = 6
    hidden: int = 2048
    dropout: float = 0.1

    def flops(self, batch: TextBatch) -> float:
        """Return the FLOPs of all linear layers, forward and backward; attention itself is negligible."""
        W, H, targets = self.width, self.hidden, batch.count
        encoder, decoder = 4 * W * W + 2 * W * H, 8 * W * W + 2 * W * H
        sources = int(batch.source_layout.lengths[: batch.sentences].sum())
        return 6.0 * (self.layers * (encoder * sources + decoder * targets) + self.vocab * W * targets)


SIZES = {
    "base": Size(),
    "small": Size(vocab=8_000, width=256, heads=4, layers=3, hidden=1024),
    "toy": Size(vocab=2400, width=32, heads=2, layers=1, hidden=64),
}


@dataclass(frozen=True)
class System:
    """How to build a model, make its batches and compute its loss.

    Attributes:
        build: Builds the model.
        loss: Computes the sum of the losses of a batch.
        layout: Layout of the batches.
        compile: Arguments of torch.compile, if the loss is compiled.
        kernels: Whether Triton kernels are enabled.
        capture: Whether steps are captured as a CUDA graph.
        other_library: Whether the model belongs to another library.
        float32: Whether to train without autocast.
        dropouts: `PAPER` or `ALL`.
        prepare: Converts a batch for the loss.
    """

    build: Callable[[Size], nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]
    layout: Layout = "padded"
    compile: dict[str, Any] | None = None
    kernels: bool = False
    capture: bool = False
    other_library: bool = False
    float32: bool = False
    dropouts: str = PAPER
    prepare: Callable[[TextBatch], Any] = lambda batch: batch


# Variants of regard


def build_regard(size: Size, all_dropouts: bool = False) -> Transformer:
    layers = {"encoder_layers": size.layers, "decoder_layers": size.layers}
    sizes = {"width": size.width, "heads": size.heads, "hidden": size.hidden, "dropout": size.dropout}
    dropouts = {"attention_dropout": size.dropout, "hidden_dropout": size.dropout} if all_dropouts else {}
    return Transformer(TransformerConfig.base(size.vocab, **layers, **sizes, pad=PAD, bos=BOS, eos=END, **dropouts))


def build_bf16(size: Size, all_dropouts: bool = False) -> Transformer:
    """Build a model with a residual stream in bfloat16."""
    model = build_regard(size, all_dropouts)
    model.residual_dtype = torch.bfloat16
    return model


def build_reference(size: Size) -> Transformer:
    """Build a model with reference attention."""
    model = build_regard(size)
    for module in model.modules():
        if isinstance(module, Attention):
            module.kind = Full(implementation="reference")
    return model


def regard_loss(model: nn.Module, batch: TextBatch) -> Tensor:
    assert isinstance(model, Transformer)
    return teacher_forcing_loss(model, batch, SMOOTHING)


def reference_loss(model: nn.Module, batch: TextBatch) -> Tensor:
    assert isinstance(model, Transformer)
    return cross_entropy(logits_of_labels(model, batch), batch.labels, SMOOTHING)


# Other libraries


@dataclass(frozen=True)
class PaddedBatch:
    """Tokens, the mask of real source tokens, and labels with -100 at padding."""

    source: Tensor
    real: Tensor
    inputs: Tensor
    labels: Tensor


def convert_padded(batch: TextBatch) -> PaddedBatch:
    labels = torch.full((batch.inputs.numel(),), -100, device=batch.labels.device)
    labels[batch.real] = batch.labels
    real = batch.source_layout.real()  # type: ignore[union-attr]
    return PaddedBatch(batch.source, real, batch.inputs, labels)


class TorchTransformer(nn.Module):
    """nn.Transformer with embeddings, positions and an output layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.scale = math.sqrt(size.width)
        self.embedding = nn.Embedding(size.vocab, size.width)
        nn.init.normal_(self.embedding.weight, std=size.width**-0.5)
        self.register_buffer("table", sinusoid(torch.arange(256), size.width), persistent=False)
        self.dropout = nn.Dropout(size.dropout)
        self.transformer = nn.Transformer(
            size.width, size.heads, size.layers, size.layers, size.hidden, size.dropout, batch_first=True
        )
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(256), persistent=False)

    def embed(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * self.scale + self.table[: tokens.shape[1]]
        y: Tensor = self.dropout(x)
        return y

    def forward(self, source: Tensor, real: Tensor, inputs: Tensor) -> Tensor:
        T = inputs.shape[1]
        x = self.transformer(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=self.causal[:T, :T],  # type: ignore[index]
            tgt_is_causal=True,  # also masks the padding, which follows the target
            src_key_padding_mask=~real,
            memory_key_padding_mask=~real,
        )
        return F.linear(x, self.embedding.weight)


def torch_loss(model: nn.Module, batch: PaddedBatch) -> Tensor:
    logits = model(batch.source, batch.real, batch.inputs).flatten(0, 1)
    return F.cross_entropy(logits, batch.labels, label_smoothing=SMOOTHING, reduction="sum")


def build_marian(size: Size) -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=size.vocab,
        d_model=size.width,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=size.hidden,
        decoder_ffn_dim=size.hidden,
        activation_function="relu",
        dropout=size.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        max_position_embeddings=256,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=END,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        attn_implementation="sdpa",
        use_cache=False,
    )
    model: nn.Module = MarianMTModel(config)
    return model


def marian_loss(model: nn.Module, batch: PaddedBatch) -> Tensor:
    output = model(
        input_ids=batch.source, attention_mask=batch.real.long(), decoder_input_ids=batch.inputs, use_cache=False
    )
    return F.cross_entropy(output.logits.flatten(0, 1), batch.labels, label_smoothing=SMOOTHING, reduction="sum")


CAPTURED: dict[str, Any] = {"layout": "fixed", "kernels": True, "capture": True}
DYNAMIC: dict[str, Any] = {"dynamic": True}
OTHER: dict[str, Any] = {"other_library": True, "prepare": convert_padded}
SYSTEMS: dict[str, System] = {
    "regard-padded": System(build_regard, regard_loss),
    "regard-packed": System(build_regard, regard_loss, "packed"),
    "regard-packed-dropouts": System(partial(build_regard, all_dropouts=True), regard_loss, "packed", dropouts=ALL),
    "regard-packed-kernels": System(build_regard, regard_loss, "packed", kernels=True),
    "regard-captured": System(build_regard, regard_loss, **CAPTURED),
    "regard-captured-bf16": System(build_bf16, regard_loss, **CAPTURED),
    "regard-captured-bf16-dropouts": System(
        partial(build_bf16, all_dropouts=True), regard_loss, **CAPTURED, dropouts=ALL
    ),
    "regard-compiled": System(
        build_regard, regard_loss, "fixed", compile={"fullgraph": True, "dynamic": False}, kernels=True
    ),
    "marian": System(build_marian, marian_loss, **OTHER),
    "marian-compiled": System(build_marian, marian_loss, **OTHER, compile=DYNAMIC),
    "nn": System(TorchTransformer, torch_loss, **OTHER, dropouts=ALL),
    "nn-compiled": System(TorchTransformer, torch_loss, **OTHER, dropouts=ALL, compile=DYNAMIC),
    "reference": System(build_reference, reference_loss, float32=True),
}


class Trainer:
    """A model with its optimizer, and a training step that may be captured."""

    def __init__(self, system: System, size: Size, device: torch.device, seed: int = 0, lr: float = 1e-4) -> None:
        torch.manual_seed(0)  # the initial weights do not depend on `seed`, the seed of dropout
        self.system, self.device = system, device
        self.model = system.build(size).to(device).train()
        torch.manual_seed(seed)
        capture = system.capture and device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=torch.full((), lr, device=device) if capture else lr,
            betas=(0.9, 0.98),
            eps=1e-9,
            weight_decay=0.0,
            fused=True,
            capturable=capture,
        )
        self.loss = system.loss if system.compile is None else torch.compile(system.loss, **system.compile)
        self.precision = "float32" if system.float32 else "auto"
        mixed = isinstance(self.model, Transformer) and system.compile is None and not system.float32
        self.half_weights = HalfWeights(self.model) if mixed and device.type == "cuda" else nullcontext()
        self.count = torch.zeros((), device=device)
        self.graph: StepGraph[Any, Tensor] | None = StepGraph([self._run_step], device) if capture else None

    def free_memory(self) -> None:
        """Free gradients and captured steps; weights and optimizer state remain."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.graph is not None:
            self.graph.signature = self.graph.captured = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def set_lr(self, lr: float) -> None:
        group = self.optimizer.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr

    def step(self, batch: TextBatch, prepared: Any) -> Tensor:
        """Run a training step and return the mean loss.

        Args:
            batch: The batch.
            prepared: The same batch, converted by `System.prepare`.
        """
        self.count.fill_(batch.count)
        if self.graph is None:
            return self._run_step([prepared])
        loss = self.graph.try_replay([prepared])
        if loss is not None:
            return loss.clone()  # the next step overwrites it
        with self.graph.eager():
            return self._run_step([prepared])

    def _run_step(self, batches: Sequence[Any]) -> Tensor:
        with autocast(self.device, self.precision), self.half_weights:
            total = self.loss(self.model, batches[0])
        mean = total / self.count
        mean.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return mean.detach()
