"""The same weights in a Hugging Face `MarianMTModel` and in our `Transformer`; tests/decoding uses this too."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from regard.interop.huggingface_marian import from_marian, read_marian
from regard.models.transformer import Transformer


def random_marian(
    vocab: int, *, width: int, heads: int, layers: int, hidden: int, ends: bool = True, seed: int = 0
) -> MarianMTModel:
    """A Marian model with random weights whose opinions are decided: no two next words nearly tie.

    Args:
        vocab: words, END (0) and PAD (the last, also the decoder's first token) among them.
        width: of the model.
        heads: of every attention.
        layers: of the encoder and of the decoder, each.
        hidden: width inside the feed-forward.
        ends: END grows likelier from token to token; otherwise it is a word like any other.
        seed: of the weights.
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
        # By default Marian ends a sentence at the limit with an END of probability 1, whatever the model says of it.
        forced_eos_token_id=None,
        max_position_embeddings=256,
    )
    model = MarianMTModel(config).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not model.lm_head:
            module.weight.normal_(std=module.in_features**-0.5, generator=draw)
            module.bias.normal_(std=0.1, generator=draw)
        elif isinstance(module, nn.LayerNorm):
            # Signs at random: else the embedding, which is also the output, makes every word say itself again.
            module.weight.normal_(generator=draw).sign_()
            module.bias.normal_(std=0.2, generator=draw)
    embedding = model.model.shared.weight
    embedding.normal_(std=width**-0.5, generator=draw)
    model.model.decoder.layers[-1].final_layer_norm.weight.mul_(3)  # the logits then spread by about 3
    if ends:
        _add_clock(model)
    return model


def _add_clock(model: MarianMTModel) -> None:
    """Sets one dimension aside for a sine that rises for some thirty positions; END's logit rises with it.

    Random weights alone write in circles and seldom end.
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
    """Our model with Marian's weights."""
    config = read_marian(marian.config.to_dict(), marian.state_dict(), "Marian")
    ours = Transformer(config).eval().requires_grad_(False)
    ours.load_state_dict(from_marian(marian.state_dict(), config))
    return ours


def marian_inputs(sources: Sequence[Sequence[int]], config: MarianConfig) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask` for sources given without END, padded behind it."""
    longest = max(len(source) for source in sources) + 1
    ids = torch.full((len(sources), longest), config.pad_token_id)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source) + 1] = torch.tensor([*source, config.eos_token_id])
    lengths = torch.tensor([len(source) + 1 for source in sources])
    return {"input_ids": ids, "attention_mask": (torch.arange(longest) < lengths[:, None]).long()}


def random_sources(count: int, vocab: int, shortest: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Sentences of random words and lengths; neither END nor PAD is among the words."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=draw).tolist()
    return [torch.randint(1, vocab - 1, (length,), generator=draw).tolist() for length in lengths]
