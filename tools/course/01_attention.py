# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 1. Attention by hand
#
# In eleven chapters we build a **Transformer** that translates English into Chinese, and use its parts for images. You need to know
# PyTorch, but nothing about attention. To run the notebooks yourself, install regard and Jupyter: `pip install -e . jupyterlab`.
#
# The model reads a sentence as a sequence of **tokens**: words, or parts of words. Each token is a vector. **Attention** is how tokens
# exchange information. It answers one question for every token: *which other tokens should I look at, and how much?* For this, a token
# has three vectors: a **query** q (what it looks for), a **key** k (what others can find it by) and a **value** v (what it passes on).
# Chapter 2 shows where they come from. Written as the rows of three matrices Q, K and V, attention is computed in three steps:
#
# 1. **scores**: compare a query q with every key k by a dot product, QKᵀ;
# 2. **weights**: divide by √d and apply the softmax to every row, so that its entries are positive and sum to 1;
# 3. **context**: take the weighted mean of the values V.
#
# Here d is the width of q and k, the number of their entries:
#
# **Attention(Q, K, V) = softmax(QKᵀ / √d) V**
#
# We compute it with pencil-and-paper numbers first, and then with the function that every model in regard uses.

# %% [markdown] lang="zh"
# # 1. 手算注意力
#
# 这门课共十一章，从零搭出一个英译中的 **Transformer**，再把同样的零件用到图像上。读者要会用 PyTorch，不需要懂注意力。
# 想自己运行这些 notebook，先安装 regard 和 Jupyter：`pip install -e . jupyterlab`。
#
# 模型读到的句子是一串**词元**（token），也就是词或词的一部分，每个词元用一个向量表示。词元之间靠**注意力**（attention）交换信息。
# 注意力对每个词元只回答一个问题：*该看哪些词元，各看多少？* 为此，每个词元有三个向量：**查询**（query）q，表示它想找什么；**键**（key）k，
# 表示别人凭什么找到它；**值**（value）v，是它交给别人的内容。这三个向量从哪里来，第 2 章再讲。
# 把它们按行排成矩阵 Q、K、V，计算分三步：
#
# 1. **打分**：用点积比较查询 q 和每个键 k，即 QKᵀ；
# 2. **权重**：除以 √d，再对每一行做 softmax，于是每一行都是正数，和为 1；
# 3. **加权求和**：按权重对值 V 求加权平均，得到输出（context）。
#
# 其中 d 是 q 和 k 的宽度，也就是分量的个数：
#
# **Attention(Q, K, V) = softmax(QKᵀ / √d) V**
#
# 先用几个手算得动的数字走一遍，再换成 regard 里所有模型共用的那个函数。

# %%
import torch

Q = torch.tensor([[1.0, 0, 1, 0],   # q1
                  [0.0, 1, 0, 1]])  # q2
K = Q.clone()  # k1 = q1, k2 = q2
scores = Q @ K.T
print(scores)

# %% [markdown] lang="en"
# Each query matches its own key (score 2) and not the other (score 0). The softmax turns a row of scores into weights:
# e² / (e² + e⁰) ≈ 0.88.

# %% [markdown] lang="zh"
# 每个查询都和自己的键匹配（得 2 分），和另一个不匹配（得 0 分）。softmax 把一行分数变成一行权重：
# e² / (e² + e⁰) ≈ 0.88。

# %%
print(scores.softmax(-1))  # without the scale
print((scores / 4**0.5).softmax(-1))  # divided by sqrt(d), d = 4

# %% [markdown] lang="en"
# Without the scale a query gives 0.88 of its attention to the matching key; divided by √4 = 2 it gives 0.73. The order is the
# same, but the distribution is softer.
#
# `regard.attend` computes the same. It expects four dimensions: batch, heads, tokens, width. A head is one such attention; chapter 3
# runs several at once, here there is one. With the identity matrix as values, the context *is* the matrix of attention weights.

# %% [markdown] lang="zh"
# 不缩放时，查询把 0.88 的注意力给了匹配的键；除以 √4 = 2 之后是 0.73。大小次序没变，只是分布更平缓了。
#
# `regard.attend` 算的就是这个。它的输入有四维：batch、头、词元、宽度。一个头就是一套这样的注意力，第 3 章会同时用好几个，
# 这里只有一个。如果把 V 取成单位矩阵，输出恰好就是注意力权重矩阵本身。

# %%
import regard

q = k = Q[None, None]  # (1, 1, 2, 4)
v = torch.eye(2)[None, None]  # (1, 1, 2, 2)
context = regard.attend(q, k, v)
print(context[0, 0])
assert torch.allclose(context[0, 0], (scores / 2).softmax(-1), atol=1e-6)

# %% [markdown] lang="en"
# ## Why divide by √d?
#
# If the entries of q and k are independent with variance 1, their dot product has variance d: the wider the head, the larger the
# scores. Large scores push the softmax to its flat end, where one weight is almost 1, all others are almost 0, and the gradient
# vanishes. Dividing by √d keeps the variance at 1 for every width: a head of width 64 divides by 8.

# %% [markdown] lang="zh"
# ## 为什么要除以 √d？
#
# 假设 q 和 k 的各个分量相互独立、方差为 1，那么点积的方差就是 d：头越宽，分数越大。分数一大，softmax 就进入饱和区：
# 一个权重接近 1，其余接近 0，梯度也随之消失。除以 √d 之后，无论宽度是多少，方差都是 1。比如头宽 64，就除以 8。

# %%
torch.manual_seed(0)
for d in (4, 64, 1024):
    q_random, k_random = torch.randn(1000, d), torch.randn(16, d)
    plain = q_random @ k_random.T
    largest = plain.softmax(-1).amax(-1).mean()
    largest_scaled = (plain / d**0.5).softmax(-1).amax(-1).mean()
    print(f"d = {d:4}: variance {plain.var():7.1f}, largest of 16 weights {largest:.2f}, with the scale {largest_scaled:.2f}")

# %% [markdown] lang="en"
# Seen as a picture: the softmax weights of one query over 16 keys, without and with the scale.

# %% [markdown] lang="zh"
# 画出来看：同一个查询对 16 个键的权重，左边不缩放，右边缩放。

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, figsize=(8, 2.4), sharey=True)
for axis, factor, title in zip(axes, (1.0, 1024**-0.5), ("d = 1024", "d = 1024, scores / 32"), strict=True):
    axis.bar(range(16), (plain[0] * factor).softmax(-1))
    axis.set(title=title, xlabel="key")
axes[0].set_ylabel("weight")

# %% [markdown] lang="en"
# A model may use another factor: `regard.attend(..., scale=...)`, or `qk_scale` in its configuration.
#
# **Next**: [masks, and where q, k and v come from](02_masks_and_projections.ipynb).

# %% [markdown] lang="zh"
# 缩放系数可以自己定：函数里用 `regard.attend(..., scale=...)`，模型配置里用 `qk_scale`。
#
# **下一章**：[掩码，以及 q、k、v 从哪来](02_masks_and_projections.ipynb)。
