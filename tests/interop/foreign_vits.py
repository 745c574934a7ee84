"""Vision Transformers with the parameter names of timm and torchvision, for tests without these libraries.

full_timm_models.py tests with the libraries themselves.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn


class TimmBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, hidden), "fc2": nn.Linear(hidden, width)})

    def forward(self, x: Tensor) -> Tensor:
        B, T, W = x.shape
        q, k, v = self.attn["qkv"](self.norm1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * (W // self.heads) ** -0.5).softmax(-1)
        x = x + self.attn["proj"]((weights @ v).transpose(1, 2).reshape(B, T, W))
        return x + self.mlp["fc2"](nn.functional.gelu(self.mlp["fc1"](self.norm2(x))))


class TimmViT(nn.Module):
    def __init__(self, image: int, patch: int, width: int, layers: int, heads: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + (image // patch) ** 2, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, patch)})
        self.blocks = nn.Sequential(*(TimmBlock(width, heads, hidden) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, 1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed["proj"](images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return logits


class TorchvisionBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(0), nn.Linear(hidden, width), nn.Dropout(0)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class TorchvisionEncoder(nn.Module):
    def __init__(self, tokens: int, width: int, layers: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.randn(1, tokens, width))
        blocks = ((f"encoder_layer_{i}", TorchvisionBlock(width, heads, hidden)) for i in range(layers))
        self.layers = nn.Sequential(OrderedDict(blocks))
        self.ln = nn.LayerNorm(width, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.ln(self.layers(x + self.pos_embedding))
        return y


class TorchvisionViT(nn.Module):
    def __init__(self, image: int, patch: int, width: int, layers: int, heads: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.encoder = TorchvisionEncoder(1 + (image // patch) ** 2, width, layers, heads, hidden)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes)))

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv_proj(images).flatten(2).transpose(1, 2)
        x = self.encoder(torch.cat((self.class_token.expand(len(x), -1, -1), x), 1))
        logits: Tensor = self.heads(x[:, 0])
        return logits
