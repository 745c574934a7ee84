"""A Marian model of transformers and a `Transformer` with the same weights; also used by tests."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList, MarianConfig, MarianMTModel

from regard.interop.huggingface_marian import from_marian, read_marian
from regard.models.transformer import Transformer

Tokens = list[list[int]]
Decoder = Callable[[Tokens, int], Tokens]  # translates sources without END, with a beam width, to targets without END


def random_marian(
    vocab: int, *, width: int, heads: int, layers: int, hidden: int, ends: bool = True, seed: int = 0
) -> MarianMTModel:
    """Return a Marian model with random weights and logits that spread widely, so that near-ties are rare.

    Args:
        vocab: Number of tokens, including END (0) and PAD (the last, also the decoder's first token).
        width: Width of the model.
        heads: Number of attention heads.
        layers: Number of layers of the encoder, and of the decoder.
        hidden: Width of the feed-forward layers.
        ends: Whether the probability of END grows with the position; otherwise END is a token like any other.
        seed: Seed of the weights.
    """
    config = MarianConfig(
        vocab_size=vocab,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=hidden,
        decoder_ffn_dim=hidden,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=vocab - 1,
        decoder_start_token_id=vocab - 1,
        eos_token_id=0,
        # By default Marian appends an END of probability 1 at the maximum length.
        forced_eos_token_id=None,
        max_position_embeddings=256,
    )
    model = MarianMTModel(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not model.lm_head:
            module.weight.normal_(std=module.in_features**-0.5, generator=generator)
            module.bias.normal_(std=0.1, generator=generator)
        elif isinstance(module, nn.LayerNorm):
            # With random signs: the embedding is also the output layer, and would otherwise repeat the input token.
            module.weight.normal_(generator=generator).sign_()
            module.bias.normal_(std=0.2, generator=generator)
    embedding = model.model.shared.weight
    embedding.normal_(std=width**-0.5, generator=generator)
    model.model.decoder.layers[-1].final_layer_norm.weight.mul_(3)  # standard deviation of the logits: about 3
    if ends:
        _add_clock(model)
    return model


def _add_clock(model: MarianMTModel) -> None:
    """Reserve a dimension for a sine that rises for about thirty positions, and let the logit of END rise with it.

    Random weights alone produce cycles and rarely END.
    """
    width = model.config.d_model
    frequency = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    clock = int((frequency - 0.05).abs().argmin())
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        for name, module in layer.named_modules():
            if name.endswith(("out_proj", "fc2")):
                module.weight[clock], module.bias[clock] = 0, 0
            elif isinstance(module, nn.LayerNorm):
                module.weight[clock], module.bias[clock] = 1.5, 0
    last = model.model.decoder.layers[-1].final_layer_norm
    last.weight[clock], last.bias[clock] = 3, -1
    embedding = model.model.shared.weight
    embedding[:, clock] = 0
    embedding[model.config.eos_token_id, clock] = 3


def as_transformer(marian: MarianMTModel) -> Transformer:
    """Return a `Transformer` with the weights of a Marian model."""
    config = read_marian(marian.config.to_dict(), marian.state_dict(), "Marian")
    model = Transformer(config).eval().requires_grad_(False)
    model.load_state_dict(from_marian(marian.state_dict(), config))
    return model


def marian_inputs(sources: Sequence[Sequence[int]], config: MarianConfig) -> dict[str, Tensor]:
    """Return `input_ids` and `attention_mask` of sources, which are given without END."""
    longest = max(len(source) for source in sources) + 1
    ids = torch.full((len(sources), longest), config.pad_token_id)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source) + 1] = torch.tensor([*source, config.eos_token_id])
    lengths = torch.tensor([len(source) + 1 for source in sources])
    return {"input_ids": ids, "attention_mask": (torch.arange(longest) < lengths[:, None]).long()}


def random_sources(count: int, vocab: int, shortest: int, longest: int, seed: int = 0) -> Tokens:
    """Return sentences of random tokens and lengths, without END and PAD."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(1, vocab - 1, (length,), generator=generator).tolist() for length in lengths]


class ForceEnd(LogitsProcessor):
    """Allow only END at the last token, with the log-probability that the model assigns to it.

    Marian's `forced_eos_token_id` assigns probability 1, which can change the best hypothesis.
    """

    def __init__(self, length: int, end: int) -> None:
        self.length, self.end = length, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] != self.length:  # the start token and all target tokens but the last
            return scores
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.end] = scores[:, self.end]
        return forced


def transformers_decoder(marian: MarianMTModel, length: int, cache: str | None = None) -> Decoder:
    """Decode with `generate`: targets of the given length, END included.

    Args:
        marian: The model.
        length: Number of target tokens.
        cache: `cache_implementation` of `generate`; dynamic by default.
    """
    options: dict[str, Any] = {} if cache is None else {"cache_implementation": cache}

    def decode(sources: Tokens, beam: int) -> Tokens:
        inputs = {name: x.to(marian.device) for name, x in marian_inputs(sources, marian.config).items()}
        output = marian.generate(
            **inputs,
            num_beams=beam,
            do_sample=False,
            min_new_tokens=length - 1,
            max_new_tokens=length,
            logits_processor=LogitsProcessorList([ForceEnd(length, marian.config.eos_token_id)]),
            **options,
        )
        return [tokens[1:-1] for tokens in output.tolist()]  # without the start token and END

    return decode
