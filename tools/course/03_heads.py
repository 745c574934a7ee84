# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 3. Heads, and the column form
#
# One softmax gives every token one distribution over the others. But a verb may have to look at its subject *and* its object.
# **Multi-head attention** runs h attentions side by side, each in a slice of the width: 512 = 8 heads × 64. The shapes are
# (B, N, W) → (B, H, N, W/H) → attend → (B, N, W) → output projection.

# %% [markdown] lang="zh"
# # 3. 多头注意力与列向量形式
#
# 一次 softmax 只能给每个词元一个分布，可是动词也许既要看主语，又要看宾语。**多头注意力**（multi-head attention）把宽度切成 h 份，
# 每份各做一次注意力：512 = 8 个头 × 64。形状变化是 (B, N, W) → (B, H, N, W/H) → 注意力 → (B, N, W) → 输出投影。

# %%
import torch
import regard

torch.manual_seed(1)
x = torch.randn(1, 6, 16)
for heads in (1, 2, 8):
    attention = regard.Attention(width=16, heads=heads)
    with regard.probe(torch.nn.ModuleDict({"layer": attention})) as seen:
        y = attention(x)
    parameters = sum(parameter.numel() for parameter in attention.parameters())
    print(f"{heads} heads of {16 // heads:2}: weights {tuple(seen['layer'].weights.shape)}, {parameters} parameters, output {tuple(y.shape)}")

# %% [markdown] lang="en"
# The number of parameters does not depend on the number of heads: the same matrices are only cut differently. By hand, with two heads:

# %% [markdown] lang="zh"
# 参数量和头数无关：矩阵还是那些矩阵，只是切法不同。手写两个头：

# %%
attention = regard.Attention(width=16, heads=2)
q, k, v = attention.qkv(x).chunk(3, -1)                           # (1, 6, 16) each
split = lambda t: t.reshape(1, 6, 2, 8).transpose(1, 2)           # (1, 2, 6, 8): two heads of width 8
context = (split(q) @ split(k).mT / 8**0.5).softmax(-1) @ split(v)
joined = context.transpose(1, 2).reshape(1, 6, 16)                # back to (1, 6, 16)
assert torch.allclose(attention.out(joined), attention(x), atol=1e-5)
print("equal to regard.Attention")

# %% [markdown] lang="en"
# Heads side by side, as an untrained layer computes them. Each head has its own pattern:

# %% [markdown] lang="zh"
# 把各个头的权重并排画出来（这一层还没有训练）。每个头的模式都不一样：

# %%
import matplotlib.pyplot as plt

attention = regard.Attention(width=16, heads=8)
with regard.probe(torch.nn.ModuleDict({"layer": attention})) as seen:
    attention(3 * x)
figure, axes = plt.subplots(1, 8, figsize=(12, 1.8))
for head, axis in enumerate(axes):
    axis.imshow(seen["layer"].weights[0, head].detach().numpy(), cmap="Greys", vmin=0)
    axis.set(title=f"head {head}", xticks=[], yticks=[])

# %% [markdown] lang="en"
# ## The column form, and what associativity saves
#
# Many texts write tokens as *columns*: A = KᵀQ and O = V·A. It is the same computation, transposed:

# %% [markdown] lang="zh"
# ## 列向量形式，以及结合律省下的计算
#
# 很多资料把词元写成*列*：A = KᵀQ，O = V·A。这和前面是同一个计算，只是整体转置了：

# %%
n, d = 6, 4
Q, K, V = torch.randn(3, d, n)  # one column per token
O = V @ (K.T @ Q / d**0.5).softmax(0)  # the softmax runs over the keys, which are now rows
rows = regard.attend(Q.T[None, None], K.T[None, None], V.T[None, None])
assert torch.allclose(O.T, rows[0, 0], atol=1e-6)
print("the column form is the transposed row form")

# %% [markdown] lang="en"
# Now leave out the softmax. Matrix products are associative: **V(KᵀQ) = (VKᵀ)Q**. The left side builds an n × n matrix; the right
# side builds a d × d matrix, whose size does not depend on the number of tokens. This is **linear attention**.

# %% [markdown] lang="zh"
# 现在去掉 softmax。矩阵乘法满足结合律：**V(KᵀQ) = (VKᵀ)Q**。左边要算一个 n × n 的矩阵，右边只要算一个 d × d 的矩阵，
# 大小和词元数无关。这就是**线性注意力**（linear attention）。

# %%
Q, K, V = torch.randn(3, 64, 2000, dtype=torch.float64)
left, right = V @ (K.T @ Q), (V @ K.T) @ Q
print("equal:", torch.allclose(left, right))
for n in (100, 1_000, 10_000):
    print(f"n = {n:6,}: V(KᵀQ) needs {2 * 2 * n * n * 64:>14,} operations, (VKᵀ)Q needs {2 * 2 * n * 64 * 64:>12,}")

# %% [markdown] lang="en"
# The price: without the softmax the weights are no longer a sharp choice among tokens. regard has linear attention as a *kind*
# (`attention: linear` in a recipe), with feature maps that keep the weights positive, next to local and routing attention, which keep
# the softmax and look at fewer keys. [Attention kinds](../attention.md) compares them by measurement.
#
# **Next**: [positions](04_positions.ipynb).

# %% [markdown] lang="zh"
# 代价是：没有了 softmax，权重就不再是对词元的「尖锐」选择。在 regard 里线性注意力是一种 kind（recipe 里写 `attention: linear`），
# 它用特征映射保证权重为正；另外还有局部注意力和路由注意力，它们保留 softmax，但只看一部分 key。
# [注意力的种类](../../attention.md)一页有实测对比。
#
# **下一章**：[位置编码](04_positions.ipynb)。
