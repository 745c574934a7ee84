# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 3. Heads, and the column form
#
# One softmax gives every token one distribution over the others. But a verb may have to look at its subject *and* its object.
# **Multi-head attention** runs H attentions side by side, each in a slice of the width: 512 = 8 heads × 64. For a batch of B
# sequences of N tokens with width W, the shapes are (B, N, W) → (B, H, N, W/H) → attend → (B, N, W) → output projection, one more
# linear layer, which mixes the heads. `regard.probe` records the attention weights inside the `with` block:

# %% [markdown] lang="zh"
# # 3. 多头注意力与列向量形式
#
# 一次 softmax 只能给每个词元一个分布，可是动词也许既要看主语，又要看宾语。**多头注意力**（multi-head attention）把宽度切成 H 份，
# 每份各做一次注意力：512 = 8 个头 × 64。设一个 batch 有 B 个序列，每个序列 N 个词元，宽度为 W，形状变化是
# (B, N, W) → (B, H, N, W/H) → 注意力 → (B, N, W) → 输出投影。输出投影是最后的一个线性层，把各个头混合起来。
# `regard.probe` 会记下 `with` 块里的注意力权重：

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
# The weights of 1, 2 and 8 heads side by side, computed by untrained layers; rows are queries, columns are keys, and dark is a large
# weight. Each head has its own pattern (x is multiplied by 3 to make it easy to see):

# %% [markdown] lang="zh"
# 把 1 个、2 个、8 个头的权重并排画出来：每一行是一个查询，每一列是一个键，颜色越深权重越大。这些层都没有训练过，但每个头的模式已经各不相同
# （x 乘以 3 只是为了看得更清楚）：

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(3, 8, figsize=(12, 4.8), subplot_kw={"visible": False})
for row, heads in zip(axes, (1, 2, 8), strict=True):
    attention = regard.Attention(width=16, heads=heads)
    with regard.probe(torch.nn.ModuleDict({"layer": attention})) as seen:
        attention(3 * x)
    for head, axis in enumerate(row[:heads]):
        axis.imshow(seen["layer"].weights[0, head].detach().numpy(), cmap="Greys", vmin=0)
        axis.set(title=f"head {head + 1} of {heads}", xticks=[], yticks=[], visible=True)

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
# side builds a d × d matrix, whose size does not depend on the number of tokens. This is **linear attention**. The product of an a × b and a b × c matrix needs
# 2abc operations:

# %% [markdown] lang="zh"
# 现在去掉 softmax。矩阵乘法满足结合律：**V(KᵀQ) = (VKᵀ)Q**。左边要算一个 n × n 的矩阵，右边只要算一个 d × d 的矩阵，
# 大小和词元数无关。这就是**线性注意力**（linear attention）。a × b 的矩阵乘 b × c 的矩阵需要 2abc 次运算：

# %%
Q, K, V = torch.randn(3, 64, 2000, dtype=torch.float64)
left, right = V @ (K.T @ Q), (V @ K.T) @ Q
print("equal:", torch.allclose(left, right))
for n in (100, 1_000, 10_000):
    print(f"n = {n:6,}: V(KᵀQ) needs {2 * 2 * n * n * 64:>14,} operations, (VKᵀ)Q needs {2 * 2 * n * 64 * 64:>12,}")

# %% [markdown] lang="en"
# The left side grows with n²: ten times as many tokens need a hundred times as many operations. The right side grows with n.
#
# The price: without the softmax the weights are no longer a sharp choice among tokens. regard has linear attention as a *kind* of
# attention, which passes q and k through a function (a feature map) that keeps the weights positive. Two other kinds keep the softmax
# and look at fewer keys: **local** attention at the neighbours of a token, **routing** attention at the tokens of the same cluster, which
# the model learns. A model uses them with `attention: linear` in its recipe, the file with the settings of a training run.
# [Attention kinds](../attention.md) compares them by measurement.
#
# **Next**: [positions](04_positions.ipynb).

# %% [markdown] lang="zh"
# 左边随 n² 增长：词元数变成十倍，计算量就变成一百倍；右边只随 n 增长。
#
# 代价是：没有了 softmax，权重就不再集中在少数几个词元上。regard 提供几种不同的注意力，线性注意力是其中之一，它让 q 和 k
# 先经过一个函数（特征映射），保证权重为正。另外两种保留 softmax，但只看一部分键：**局部**注意力看邻近的词元，**路由**注意力看同一簇的词元，
# 怎样分簇由模型自己学。要在模型里使用，只需在 recipe（一次训练的设置文件）里写 `attention: linear`。
# [注意力的种类](../attention.md)一页有实测对比。
#
# **下一章**：[位置编码](04_positions.ipynb)。
