"""Small models with random weights and peaked predictions, which rounding errors do not change."""

from typing import Any

import torch
from torch import nn

from regard.models.transformer import Transformer, TransformerConfig

VOCAB = 60


def peaked_model(seed: int = 2, **changes: Any) -> Transformer:
    torch.manual_seed(seed)
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    sizes = {"source_vocab": VOCAB, "target_vocab": VOCAB, "width": 32, "heads": 2, "hidden": 64, **layers}
    model = Transformer(TransformerConfig(**(sizes | changes))).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            # Random signs: otherwise the tied embedding makes every position predict its input token.
            module.weight.normal_().sign_()
    last = model.decoder_norm if model.config.has_final_norm else model.decoder[-1].norm3
    last.weight.mul_(3)
    last.bias.add_(2 * model.target_embedding.weight[model.config.eos])
    return model
