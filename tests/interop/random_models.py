"""Models of random weights that write varied sentences and end them, with a small vocabulary of real pieces."""

import copy
from functools import cache

import torch
from torch import Tensor, nn

from regard.data.text.tokenizer import Tokenizer
from regard.data.text.vocabularies import Vocabularies
from regard.models.transformer import Transformer, TransformerConfig
from regard.pipelines.translator import Translator

SMALL = {"width": 32, "heads": 4, "hidden": 48, "encoder_layers": 2, "decoder_layers": 2}

# Every option of a Transformer that another format may or may not have a place for.
OPTIONS: dict[str, dict[str, object]] = {
    "post": {},
    "pre": {"norm": "pre"},
    "gelu": {"activation": "gelu"},
    "pre-swiglu": {"norm": "pre", "activation": "swiglu"},
    "halves": {"positions": "sinusoidal-halves"},
    "learned": {"positions": "learned", "max_length": 96},
    "pre-learned": {"norm": "pre", "positions": "learned", "max_length": 96},
    "rotary": {"positions": "rotary"},
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


# Those that go well together in one model, in which each of them would be missed.
TOGETHER: dict[str, dict[str, object]] = {
    "post": {},
    "post-and-all": OPTIONS["gelu"] | OPTIONS["halves"] | OPTIONS["no-bias"] | OPTIONS["scale"],
    **{name: OPTIONS[name] for name in OPTIONS if name not in ("pre", "gelu", "halves", "no-bias", "scale")},
}


def random_translator(option: str, seed: int = 1, **changes: object) -> Translator:
    """A model of an option of `OPTIONS` or `TOGETHER`; whoever changes it changes nobody else's."""
    model, vocabularies = _make(option, seed, tuple(changes.items()))
    return Translator(copy.deepcopy(model), vocabularies, ("en", "de"))


@cache
def _make(option: str, seed: int, changes: tuple[tuple[str, object], ...]) -> tuple[Transformer, Vocabularies]:
    source, target = tokenizer(290), tokenizer(280 if option.startswith("two") else 290)
    vocabularies = Vocabularies(source, source if source is target else target)
    sizes = {"source_vocab": len(source), "target_vocab": len(target)}
    model = Transformer(TransformerConfig.parse(SMALL | sizes | (OPTIONS | TOGETHER)[option] | dict(changes), option))
    seed += option in ("uneven", "post-and-all")  # the first seed makes one that always says the same, or without end
    return randomise(model, seed), vocabularies


@torch.no_grad()
def randomise(model: Transformer, seed: int = 0) -> Transformer:
    """Random weights whose opinions are decided: no two next words nearly tie."""
    model.eval()
    draw = torch.Generator().manual_seed(seed)
    for name, tensor in model.named_parameters():
        if "norm.weight" in name:
            # Signs at random: else the embedding, which is also the output, makes every word say itself again.
            tensor.copy_(torch.randn(tensor.shape, generator=draw).sign())
        elif tensor.dim() == 1:
            tensor.normal_(std=0.2, generator=draw)
        else:
            tensor.normal_(std=1.0 if "positions" in name else tensor.shape[1] ** -0.5, generator=draw)
            if "qkv" in name:  # sharp attention to large values, so that what was read matters
                tensor *= 2
    config, last = model.config, model.decoder[-1]
    if config.has_final_norm:
        said = model.decoder_norm
    else:
        said = last.around_feed_forward.norm if config.norm == "post" else last.feed_forward.outer
    if isinstance(said, nn.LayerNorm):
        said.weight.mul_(3)
    else:  # what no norm holds spreads far by itself, and rounding with it
        model.output_weight.mul_(0.3)
    said.bias.normal_(generator=draw)
    read = torch.randint(3, config.source_vocab, (16, 9), generator=draw)
    for _ in range(3):
        # END's row looks along the bias that every place has in common, so far that one place in eight is an end.
        missing = _what_end_lacks(model, read)
        model.output_weight[config.eos] += missing.quantile(1 / 8) * said.bias / said.bias.square().sum()
    return model.requires_grad_(False)


def _what_end_lacks(model: Transformer, read: Tensor) -> Tensor:
    """By how much END's logit is below the highest, at every place of what the model would write without end."""
    said = torch.full((len(read), 1), model.config.bos)
    for _ in range(16):
        logits = model(read, said)
        highest = logits[:, -1].clone()
        highest[:, model.config.eos] = -torch.inf
        said = torch.cat((said, highest.argmax(-1, keepdim=True)), 1)
    return (logits.amax(-1) - logits[..., model.config.eos]).flatten()
