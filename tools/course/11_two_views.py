# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 11. Two views: CroCo, and the way to DUSt3R and MASt3R
#
# Two photographs of one scene from different places contain its geometry. **CroCo** learns it without labels: 90 % of the first view is
# hidden, and the model completes it with the help of the second. The visible 10 % of the first view are not enough; the model has to find
# *where the same surface is in the other view*.

# %% [markdown] lang="zh"
# # 11. 两个视角：从 CroCo 到 DUSt3R 和 MASt3R
#
# 从两个位置拍同一个场景，两张照片里就有了几何信息。**CroCo** 不需要标注就能学到它：把第一张图遮住 90%，让模型借助第二张图补全。
# 只凭第一张图剩下的 10% 是补不出来的，模型必须找到*同一块表面在另一张图里的位置*。

# %%
import torch
import regard
from regard.attention.multi_head import Rotary2D
from regard.layers import DecoderBlock, FeedForward

torch.manual_seed(0)
model = regard.CroCo(regard.CroCoConfig.micro()).eval()
view1, view2 = torch.rand(2, 1, 3, 64, 64)
patches = (64 // model.config.patch) ** 2
visible = torch.randperm(patches)[: patches // 10].sort().values[None]  # 10 % of the patches of view 1
prediction = model(view1, view2, visible)  # the pixels of each patch: 8 × 8 × 3 = 192
print(f"{visible.shape[1]} of {patches} patches are visible; prediction {tuple(prediction.shape)}")

# %% [markdown] lang="en"
# This model is not trained. A trained one completes eight scenes that it has not seen:
#
# ![Completed images with the true second view, with another one, and without](../images/croco-completed.png)
#
# From left to right: the visible patches; the true second view, and what the model makes of it; the second view of another scene, and
# the result; no second view, and the result; the first view. Only with the true second view do the details come back. (The mean and
# the contrast of each patch are not predicted, but taken from the first view.)
#
# Both views go through the same encoder, a ViT with rotary 2-D positions. The decoder works on the tokens of view 1. Its block has the
# three sublayers of chapter 6, in pre-norm form:
#
# 1. self-attention among the tokens of view 1;
# 2. cross-attention to view 2, which has **a norm of its own**;
# 3. feed-forward.
#
# Each has a residual connection, with stochastic depth in training: a sublayer is sometimes skipped at random. Written out:

# %% [markdown] lang="zh"
# 这个模型还没有训练。训练好的模型补全八个没见过的场景，结果如下：
#
# ![用真正的第二张图、用别的场景的第二张图、不用第二张图补全的结果](../../images/croco-completed.png)
#
# 从左到右依次是：可见的图块；真正的第二张图和补全的结果；别的场景的第二张图和补全的结果；不给第二张图（灰色）和补全的结果；
# 第一张图本身。只有给了真正的第二张图，细节才能还原。（每个图块的平均亮度和对比度不是预测的，而是取自第一张图。）
#
# 两张图经过同一个编码器，也就是带二维旋转位置编码的 ViT。解码器处理的是第一张图的词元，解码器块由第 6 章的三个子层组成，用 pre-norm：
#
# 1. 第一张图内部的自注意力；
# 2. 对第二张图的交叉注意力，第二张图**有自己的归一化层**；
# 3. 前馈层。
#
# 每个子层都有残差连接，训练时还带随机深度（stochastic depth），也就是偶尔随机跳过一个子层。展开写就是：

# %%
width, heads = 96, 3
rotary = Rotary2D(width // heads)
block = DecoderBlock(
    regard.Attention(width, heads, rotary=rotary), regard.Attention(width, heads, rotary=rotary),
    FeedForward(width, 4 * width, "gelu"), norm="pre", source_norm=True,
)
x, y = torch.randn(1, 16, width), torch.randn(1, 16, width)             # tokens of view 1 and of view 2
places = torch.cartesian_prod(torch.arange(4), torch.arange(4))[None]   # (row, column) of each patch

other = block.source_norm(y)
z = x + block.attention(block.norm1(x), positions=places)
z = z + block.cross(block.norm2(z), other, positions=places, source_positions=places)
z = z + block.feed_forward(block.norm3(z))
assert torch.allclose(z, block(x, y, positions=places, source_positions=places), atol=1e-5)
print("equal to DecoderBlock")

# %% [markdown] lang="en"
# ## What DUSt3R and MASt3R add
#
# The same blocks lead to 3-D reconstruction:
#
# | | CroCo | DUSt3R | MASt3R |
# | --- | --- | --- | --- |
# | decoders | one, for view 1 | two, for both views; in every layer each attends to the tokens of the other | as DUSt3R |
# | output | pixels of the hidden patches | for every pixel a 3-D point (in the frame of view 1) and a confidence | also a descriptor for every pixel: a vector by which it is matched |
# | loss | squared error of the pixels | distance ℓ of the points, weighted by the confidence C: C·ℓ − α·log C | also InfoNCE: the descriptors of true matches must be most similar |
# | use | pretraining, features | depth, camera poses, point clouds | matching |
#
# The loss of DUSt3R lets the model choose its confidence: a large C makes an error expensive, a small C costs −α·log C. The best C for
# an error ℓ is α/ℓ, so the confidence becomes a measure of the error (DUSt3R computes C as 1 + exp(c), which keeps it above 1):

# %% [markdown] lang="zh"
# ## DUSt3R 和 MASt3R 多了什么
#
# 同样的模块再往前走，就是三维重建：
#
# | | CroCo | DUSt3R | MASt3R |
# | --- | --- | --- | --- |
# | 解码器 | 一个，处理第一张图 | 两个，各处理一张图，每一层都互相看对方的词元 | 同 DUSt3R |
# | 输出 | 被遮住部分的像素 | 每个像素对应的三维点（以第一张图的相机为坐标系）和置信度 | 另加每个像素的描述子，即用来匹配的向量 |
# | 损失 | 像素的平方误差 | 点的距离 ℓ，以置信度 C 加权：C·ℓ − α·log C | 另加 InfoNCE：真正匹配的两点，描述子必须最相似 |
# | 用途 | 预训练、提取特征 | 深度、相机位姿、点云 | 匹配 |
#
# DUSt3R 的损失让模型自己决定置信度：C 大，误差的代价就高；C 小，又要付出 −α·log C。误差为 ℓ 时最优的 C 是 α/ℓ，
# 因此置信度就成了误差的一种度量（DUSt3R 用 1 + exp(c) 计算 C，所以 C 总大于 1）：

# %%
alpha = 0.2
confidence = torch.linspace(0.01, 20, 20_000)
for error in (0.02, 0.1, 0.5):
    loss = confidence * error - alpha * confidence.log()
    print(f"error {error}: best confidence {confidence[loss.argmin()]:.2f}, alpha / error = {alpha / error:.2f}")

# %% [markdown] lang="en"
# regard trains CroCo and, on top of it, models for disparity, the shift of a point between the two views, which gives its depth:
# [CroCo](../croco.md). This is the end of the course. To see all of this at
# work on your own model, run `regard serve RUN` and open the page.

# %% [markdown] lang="zh"
# regard 可以训练 CroCo，也可以在它的基础上训练视差模型（视差是同一点在两张图之间的位移，由它可以算出深度），见 [CroCo](../croco.md)。课程到这里就结束了。
# 想看看自己的模型是怎么做的，运行 `regard serve RUN`，打开网页即可。
