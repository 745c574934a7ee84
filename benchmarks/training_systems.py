"""Who takes part in benchmarks/training.py: our Transformer in several ways, Hugging Face's Marian and nn.Transformer.

All have the same size and label smoothing, tied embeddings, bfloat16 autocast on a GPU, fused AdamW. Peers get padded
batches of sentences of like length, in which little is wasted; what is packed gets the same sentences at random.

The dropouts of the workload are the paper's: on embeddings, and on what each sublayer adds. nn.Transformer has one
number for these and two more, on the weights of attention and within the feed-forward, which the paper does not have.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import stubs  # noqa: F401
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_workload import BOS, END, PAD, Layout

from regard.attention.core import Full
from regard.attention.multi_head import Attention
from regard.attention.positions import sinusoid
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops.linear import HalfWeights
from regard.training.cuda_graph import StepGraph
from regard.training.loop import autocast
from regard.training.objectives.objective import cross_entropy, logits_of_labels, teacher_forcing_loss
from regard.training.tasks.translation.batches import TextBatch

SMOOTHING = 0.1
PAPERS, ALL = "the paper's", "all"
"""Which dropouts a contender has; `ALL` are nn.Transformer's."""


# Contenders


@dataclass(frozen=True)
class Size:
    """Of all models alike."""

    vocab: int = 32_000
    width: int = 512
    heads: int = 8
    layers: int = 6
    hidden: int = 2048
    dropout: float = 0.1

    def flops(self, batch: TextBatch) -> float:
        """Of the products with weights, forward and backward, in which attention's own hardly count."""
        W, F_, real = self.width, self.hidden, batch.count
        encoder, decoder = 4 * W * W + 2 * W * F_, 8 * W * W + 2 * W * F_
        sources = int(batch.source_layout.lengths[: batch.sentences].sum())
        return 6.0 * (self.layers * (encoder * sources + decoder * real) + self.vocab * W * real)


SIZES = {
    "base": Size(),
    "small": Size(vocab=8_000, width=256, heads=4, layers=3, hidden=1024),
    "toy": Size(vocab=2400, width=32, heads=2, layers=1, hidden=64),
}
Loss = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Contender:
    """How a model is made, which batches it reads, and how its loss is had."""

    build: Callable[[Size], nn.Module]
    loss: Loss
    layout: Layout = "padded"
    compile: dict[str, Any] | None = None
    kernels: bool = False
    record: bool = False
    peer: bool = False
    precise: bool = False
    dropouts: str = PAPERS
    prepare: Callable[[TextBatch], Any] = lambda batch: batch


def build_ours(size: Size, **changes: Any) -> Transformer:
    layers = {"encoder_layers": size.layers, "decoder_layers": size.layers}
    sizes = {"width": size.width, "heads": size.heads, "hidden": size.hidden, "dropout": size.dropout}
    return Transformer(TransformerConfig.base(size.vocab, **layers, **sizes, pad=PAD, bos=BOS, eos=END, **changes))


def build_with_all_dropouts(size: Size) -> Transformer:
    """As nn.Transformer has it: on attention's weights and within the feed-forward, too."""
    return build_ours(size, attention_dropout=size.dropout, hidden_dropout=size.dropout)


def build_half(size: Size, **changes: Any) -> Transformer:
    """Half precision between the blocks as well as within them."""
    model = build_ours(size, **changes)
    model.residual_dtype = torch.bfloat16
    return model


def build_half_with_all_dropouts(size: Size) -> Transformer:
    return build_half(size, attention_dropout=size.dropout, hidden_dropout=size.dropout)


def build_reference(size: Size) -> Transformer:
    """Attention by the formula."""
    model = build_ours(size)
    for module in model.modules():
        if isinstance(module, Attention):
            module.kind = Full(path="reference")
    return model


def our_loss(model: nn.Module, batch: TextBatch) -> Tensor:
    assert isinstance(model, Transformer)
    return teacher_forcing_loss(model, batch, SMOOTHING)


def our_loss_of_whole_logits(model: nn.Module, batch: TextBatch) -> Tensor:
    assert isinstance(model, Transformer)
    return cross_entropy(logits_of_labels(model, batch), batch.labels, SMOOTHING)


# Peers


@dataclass(frozen=True)
class PaddedBatch:
    """What peers read: tokens, which of the source's are real, and labels with -100 where there is none."""

    source: Tensor
    real: Tensor
    inputs: Tensor
    labels: Tensor


def pad_for_peers(batch: TextBatch) -> PaddedBatch:
    labels = torch.full((batch.inputs.numel(),), -100, device=batch.labels.device)
    labels[batch.real] = batch.labels
    real = batch.source_layout.real()  # type: ignore[union-attr]
    return PaddedBatch(batch.source, real, batch.inputs, labels)


class TorchTransformer(nn.Module):
    """nn.Transformer with embeddings, positions and an output."""

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
            tgt_is_causal=True,  # which hides the padding of the target as well
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
    found = model(
        input_ids=batch.source, attention_mask=batch.real.long(), decoder_input_ids=batch.inputs, use_cache=False
    )
    return F.cross_entropy(found.logits.flatten(0, 1), batch.labels, label_smoothing=SMOOTHING, reduction="sum")


ONE_GRAPH: dict[str, Any] = {"fullgraph": True, "dynamic": False}
DYNAMIC: dict[str, Any] = {"dynamic": True}
QUICK: dict[str, Any] = {"kernels": True, "record": True}
MARIAN: dict[str, Any] = {"build": build_marian, "loss": marian_loss, "peer": True, "prepare": pad_for_peers}
TORCH: dict[str, Any] = {
    "build": TorchTransformer,
    "loss": torch_loss,
    "peer": True,
    "prepare": pad_for_peers,
    "dropouts": ALL,
}
CONTENDERS: dict[str, Contender] = {
    "regard-padded": Contender(build_ours, our_loss),
    "regard-packed": Contender(build_ours, our_loss, "packed"),
    "regard-packed-dropouts": Contender(build_with_all_dropouts, our_loss, "packed", dropouts=ALL),
    "regard-packed-kernels": Contender(build_ours, our_loss, "packed", kernels=True),
    "regard-captured": Contender(build_ours, our_loss, "framed", **QUICK),
    "regard-captured-bf16": Contender(build_half, our_loss, "framed", **QUICK),
    "regard-captured-bf16-dropouts": Contender(build_half_with_all_dropouts, our_loss, "framed", **QUICK, dropouts=ALL),
    "regard-compiled": Contender(build_ours, our_loss, "framed", ONE_GRAPH, kernels=True),
    "marian": Contender(**MARIAN),
    "marian-compiled": Contender(**MARIAN, compile=DYNAMIC),
    "nn": Contender(**TORCH),
    "nn-compiled": Contender(**TORCH, compile=DYNAMIC),
    "reference": Contender(build_reference, our_loss_of_whole_logits, precise=True),
}


class Trainer:
    """A contender that trains: model, optimiser, one step, which may be recorded."""

    def __init__(self, contender: Contender, size: Size, device: torch.device, seed: int = 0, lr: float = 1e-4) -> None:
        torch.manual_seed(0)  # the same weights for every seed, which is that of dropout
        self.contender, self.device = contender, device
        self.model = contender.build(size).to(device).train()
        torch.manual_seed(seed)
        record = contender.record and device.type == "cuda"
        rate = torch.full((), lr, device=device) if record else lr
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True,
            capturable=record,
        )  # fmt: skip
        loss = contender.loss
        self.loss = loss if contender.compile is None else torch.compile(loss, **contender.compile)
        self.precision = "float32" if contender.precise else "auto"
        ours = isinstance(self.model, Transformer) and contender.compile is None and not contender.precise
        self.half_weights = HalfWeights(self.model) if ours and device.type == "cuda" else nullcontext()
        self.count = torch.zeros((), device=device)
        self.recorder: StepGraph[Any, Tensor] | None = StepGraph(self._take, device) if record else None

    def let_go(self) -> None:
        """Gives back all memory but that of the weights and the optimiser's: gradients, and what was recorded."""
        self.optimiser.zero_grad(set_to_none=True)
        if self.recorder is not None:
            self.recorder.signature = self.recorder.captured = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def set_rate(self, rate: float) -> None:
        group = self.optimiser.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def step(self, batch: TextBatch, read: Any) -> Tensor:
        """Forward, backward, optimiser; `read` is the batch as the contender wants it."""
        self.count.fill_(batch.count)
        if self.recorder is None:
            return self._take([read])
        taken = self.recorder.replay([read])
        if taken is not None:
            return taken.clone()  # the next step will overwrite it
        with self.recorder.eager():
            return self._take([read])

    def _take(self, read: Sequence[Any]) -> Tensor:
        with autocast(self.device, self.precision), self.half_weights:
            total = self.loss(self.model, read[0])
        mean = total / self.count
        mean.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return mean.detach()
