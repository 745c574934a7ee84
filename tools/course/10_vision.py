# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 10. Images: ViT and Swin
#
# Attention needs tokens; a photograph has pixels. **ViT** (Vision Transformer) cuts the image into patches and treats each patch as
# a word. A 224 × 224 image has 14 × 14 = 196 patches of 16 × 16 pixels with 3 colours: 196 tokens of 768 numbers.

# %% [markdown] lang="zh"
# # 10. 图像：ViT 与 Swin
#
# 注意力处理的是词元，图片却只有像素。**ViT**（Vision Transformer）把图片切成**图块**（patch），
# 一个图块当作一个词。224 × 224 的图片可以切成 14 × 14 = 196 个图块，每个 16 × 16 像素、3 个颜色通道，于是得到 196 个词元，每个 768 维。

# %%
import torch
import regard

torch.manual_seed(0)
image = torch.rand(1, 3, 224, 224)
patches = image.unfold(2, 16, 16).unfold(3, 16, 16)       # (1, 3, 14, 14, 16, 16)
patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(1, 196, 768)
print("patches:", tuple(patches.shape))

model = regard.ViT(regard.ViTConfig.base(classes=1000)).eval()
tokens = model.patches(image)                             # a linear projection of each patch
assert torch.allclose(tokens, patches @ model.patches.weight.flatten(1).T + model.patches.bias, atol=1e-4)
print("projected:", tuple(tokens.shape))
print("with the class token:", tuple(model.tokens(image).shape))
print("logits:", tuple(model(image).shape))

# %% [markdown] lang="en"
# A **class token** is put in front: 197 tokens. It belongs to no patch; it collects what the classification needs, and only its output
# is classified. Learned positions are added, since the patches have lost their places. From here on it is the encoder of chapter 6,
# with pre-norm: 12 blocks, 12 heads of width 64, feed-forward 768 → 3072 → 768.

# %% [markdown] lang="zh"
# 最前面再加一个**类别词元**（class token），一共 197 个词元。它不对应任何一个图块，专门汇集分类要用的信息，最后只拿它的输出去分类。
# 切成图块就丢掉了位置信息，所以要加上可学习的位置编码。接下来就是第 6 章的编码器，用的是 pre-norm：12 层，12 个宽 64 的头，
# 前馈层 768 → 3072 → 768。

# %%
parameters = sum(parameter.numel() for parameter in model.parameters())
block = model.encoder[0]
print(f"{parameters:,} parameters, {len(model.encoder)} blocks, {block.attention.heads} heads of {768 // block.attention.heads}")
print("feed-forward:", block.feed_forward.inner.in_features, "→", block.feed_forward.inner.out_features)
print("learned positions:", tuple(model.positions.shape))

# %% [markdown] lang="en"
# ## Swin: windows that shift
#
# 196 tokens are few. With patches of 4 × 4 pixels there are 3,136, and full attention compares every two of them: almost ten million
# pairs. **Swin** attends within windows of 7 × 7 tokens only. So that information crosses their borders, every second block shifts the
# windows by half their size. The picture has 8 × 8 tokens in windows of 4 × 4, one colour for each window:

# %% [markdown] lang="zh"
# ## Swin：会移动的窗口
#
# 196 个词元不算多。如果每个图块只有 4 × 4 像素，就有 3,136 个词元，完整的注意力要两两比较，将近一千万对。**Swin** 只在 7 × 7 的窗口内部
# 做注意力；为了让信息能跨过窗口的边界，每隔一层把窗口平移半个窗口的距离。图中有 8 × 8 个词元，窗口是 4 × 4，一种颜色代表一个窗口：

# %%
from regard.models.swin import split_windows
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, figsize=(6, 3.2))
for axis, shift in zip(axes, ((0, 0), (2, 2)), strict=True):
    # The layout of Hugging Face transformers; timm differs only for grids that need padding.
    windows = split_windows((8, 8), (4, 4), shift, "transformers", torch.device("cpu"))
    owner = torch.empty(64)
    for number, tokens in enumerate(windows.tokens):
        owner[tokens] = number
    axis.imshow(owner.view(8, 8).numpy(), cmap="Pastel1")
    axis.set(title=f"shifted by {shift[0]}", xticks=[], yticks=[])

full, windowed = 3136**2, 3136 * 49
print(f"pairs: full attention {full:,}, windows of 7 × 7 {windowed:,} ({full // windowed} times fewer)")

# %% [markdown] lang="en"
# In the shifted picture, the windows at the edges join opposite sides of the image; a mask prevents attention across that seam. The
# blocks form four *stages*. Between two stages, 2 × 2 neighbouring tokens are merged into one of twice the width, so that later stages see larger parts of the image.

# %% [markdown] lang="zh"
# 平移之后，边缘的窗口会把图片相对的两侧拼在一起，要用掩码禁止跨过接缝的注意力。所有的块分成四个*阶段*（stage），从一个阶段到下一个，相邻的 2 × 2 个词元合并成一个，
# 宽度翻倍，这样后面的阶段就能看到更大的范围。

# %%
swin = regard.Swin(regard.SwinConfig.tiny(classes=1000)).eval()
print("logits:", tuple(swin(image).shape))
print("widths of the stages:", [swin.config.stage_width(stage) for stage in range(4)])
print(f"{sum(parameter.numel() for parameter in swin.parameters()):,} parameters")

# %% [markdown] lang="en"
# Train your own classifier: [image classification](../classification.md).
#
# **Next**: [two views: CroCo, and the way to DUSt3R and MASt3R](11_two_views.ipynb).

# %% [markdown] lang="zh"
# 训练自己的分类器，见[图像分类](../classification.md)。
#
# **下一章**：[两个视角：从 CroCo 到 DUSt3R 和 MASt3R](11_two_views.ipynb)。
