"""Translation models with random weights that generate varied sentences of limited length."""

import copy
from functools import cache

import torch
from torch import Tensor, nn

from regard.data.text.tokenizer import Tokenizer, Vocabularies
from regard.models.transformer import Transformer, TransformerConfig
from regard.pipelines.translator import Translator

SMALL = {"width": 32, "heads": 4, "hidden": 48, "encoder_layers": 2, "decoder_layers": 2}

# Every option of a Transformer that another format may not support.
OPTIONS: dict[str, dict[str, object]] = {
    "post": {},
    "pre": {"norm": "pre"},
    "gelu": {"activation": "gelu"},
    "pre-swiglu": {"norm": "pre", "activation": "swiglu"},
    "halves": {"positions": "sinusoidal-halves"},
    "learned": {"positions": "learned", "max_length": 96},
    "pre-learned": {"norm": "pre", "positions": "learned", "max_length": 96},
    "rotary": {"positions": "rotary"},
    "diagonal": {"positions": "diagonal-scaled"},
    "untied": {"tie": "none"},
    "pre-untied": {"norm": "pre", "tie": "none"},
    "two-vocabularies": {"tie": "target"},
    "two-vocabularies-untied": {"tie": "none", "norm": "pre"},
    "no-bias": {"qkv_bias": False},
    "scale": {"qk_scale": 0.25},
    "pre-without-final-norm": {"norm": "pre", "final_norm": False},
    "post-with-final-norm": {"final_norm": True},
    "eps": {"norm_eps": 1e-2},
    "uneven": {"encoder_layers": 3, "decoder_layers": 1, "norm": "pre"},
}


@cache
def tokenizer(size: int) -> Tokenizer:
    lines = ["the small red dog sees a tall tree", "a tall man reads the old red book", "you and I see the sea"] * 2
    return Tokenizer.train(lines, size)


# Options that can be tested together in one model.
COMBINED: dict[str, dict[str, object]] = {
    "post": {},
    "post-and-all": OPTIONS["gelu"] | OPTIONS["halves"] | OPTIONS["no-bias"] | OPTIONS["scale"],
    **{name: OPTIONS[name] for name in OPTIONS if name not in ("pre", "gelu", "halves", "no-bias", "scale")},
}


def random_translator(option: str, seed: int = 1, **changes: object) -> Translator:
    """Return a new translator with an option of `OPTIONS` or `COMBINED`."""
    model, vocabularies = _build(option, seed, tuple(changes.items()))
    return Translator(copy.deepcopy(model), vocabularies, ("en", "de"))


@cache
def _build(option: str, seed: int, changes: tuple[tuple[str, object], ...]) -> tuple[Transformer, Vocabularies]:
    source, target = tokenizer(290), tokenizer(280 if option.startswith("two") else 290)
    vocabularies = Vocabularies(source, source if source is target else target)
    sizes = {"source_vocab": len(source), "target_vocab": len(target)}
    model = Transformer(TransformerConfig.parse(SMALL | sizes | (OPTIONS | COMBINED)[option] | dict(changes), option))
    seed += option in ("uneven", "post-and-all")  # with the first seed, translations are constant or endless
    return randomise(model, seed), vocabularies


@torch.no_grad()
def randomise(model: Transformer, seed: int = 0) -> Transformer:
    """Set random weights for which the probabilities of the next tokens are well separated."""
    model.eval()
    rng = torch.Generator().manual_seed(seed)
    for name, tensor in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            # Random signs, because the tied embedding would otherwise make every token predict itself.
            tensor.copy_(torch.randn(tensor.shape, generator=rng).sign())
        elif tensor.dim() == 1:
            tensor.normal_(std=0.2, generator=rng)
        else:
            tensor.normal_(std=1.0 if "positions" in name else tensor.shape[1] ** -0.5, generator=rng)
            if "qkv" in name:  # sharp attention to large values, so that outputs depend on the source
                tensor *= 2
    config, last = model.config, model.decoder[-1]
    if config.has_final_norm:
        output_layer = model.decoder_norm
    else:
        output_layer = last.norm3 if config.norm == "post" else last.feed_forward.outer
    if isinstance(output_layer, nn.LayerNorm):
        output_layer.weight.mul_(3)
    else:  # without a norm, the values are already large
        model.output_weight.mul_(0.3)
    output_layer.bias.normal_(generator=rng)
    sources = torch.randint(3, config.source_vocab, (16, 9), generator=rng)
    for _ in range(3):
        # Moves END's row along the output bias, which all positions share, until about one position in eight is END.
        margin, bias = _end_margins(model, sources).quantile(1 / 8), output_layer.bias
        model.output_weight[config.eos] += margin * bias / bias.square().sum()
    return model.requires_grad_(False)


def _end_margins(model: Transformer, sources: Tensor) -> Tensor:
    """Return the difference between the largest logit and that of END at every position of endless translations."""
    targets = torch.full((len(sources), 1), model.config.bos)
    for _ in range(16):
        logits = model(sources, targets)
        highest = logits[:, -1].clone()
        highest[:, model.config.eos] = -torch.inf
        targets = torch.cat((targets, highest.argmax(-1, keepdim=True)), 1)
    return (logits.amax(-1) - logits[..., model.config.eos]).flatten()
