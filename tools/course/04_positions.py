# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 4. Positions
#
# Attention compares *contents*. Shuffle the input tokens, and the outputs are shuffled in the same way: without positions,
# "dog bites man" and "man bites dog" are the same bag of words. We check it:

# %% [markdown] lang="zh"
# # 4. 位置编码
#
# 注意力比较的只是*内容*。把输入的词元打乱，输出也只是跟着打乱。没有位置信息，“狗咬人”和“人咬狗”就是同一个词袋。验证一下：

# %%
import torch
import regard

torch.manual_seed(0)
attention = regard.Attention(width=16, heads=2)
x = torch.randn(1, 5, 16)
order = torch.tensor([3, 0, 4, 1, 2])
print(torch.allclose(attention(x[:, order]), attention(x)[:, order], atol=1e-6))

# %% [markdown] lang="en"
# So every token receives a position vector p, which is **added** to its vector x, the embedding of the token (chapter 5). It is not
# concatenated: the width stays the same, and a linear layer applied to x + p can still separate content and position.
#
# The simplest idea is a diagonal matrix: position p has a single entry at place p. In one common form this entry is p itself, so that
# position 0 is the zero vector. It makes two weaknesses visible: the table ends at `width` positions, and every two positions are
# orthogonal (their dot product is 0), so nothing says that 3 is closer to 4 than to 5.

# %% [markdown] lang="zh"
# 所以要给每个词元一个位置向量 p，**加**到词元的向量 x（即词元的嵌入，见第 5 章）上。是相加，不是拼接：宽度不变，而线性层作用在
# x + p 上，仍然分得清内容和位置。
#
# 最简单的想法是对角矩阵：第 p 个位置只在第 p 维上有值。有一种常见的写法，这个值就是 p 本身，于是位置 0 是零向量。
# 它正好暴露出两个弱点：位置数不能超过宽度；任意两个位置都正交（点积为 0），看不出 3 离 4 比离 5 近。

# %%
diagonal = torch.diag(torch.arange(6.0))
print(diagonal)
print("dot product of positions 3 and 4:", (diagonal[3] @ diagonal[4]).item(), " of 3 and 5:", (diagonal[3] @ diagonal[5]).item())

# %% [markdown] lang="en"
# ## Sinusoidal
#
# "Attention Is All You Need", the paper of the Transformer, uses waves of different lengths. Features 2i and 2i+1 of position p are
# sin(p / 10000^(2i/d)) and cos(p / 10000^(2i/d)), where d is the width. Like the hands of a clock, the first features turn fast and
# the last ones slowly. Any position has an encoding, also beyond those seen in training, and near positions are similar. In the
# picture on the left, blue is positive and red is negative; in the other two, dark means a large cosine similarity of two positions:

# %% [markdown] lang="zh"
# ## 正弦编码
#
# 提出 Transformer 的论文 “Attention Is All You Need” 用的是一组不同波长的正弦波：位置 p 的第 2i 维和第 2i+1 维分别是
# sin(p / 10000^(2i/d)) 和 cos(p / 10000^(2i/d))，d 是宽度。就像钟表的指针，前面的维度转得快，后面的维度转得慢。
# 任何位置都有编码，训练时没见过的长度也不例外；而且相邻的位置彼此相似。左图里蓝色为正、红色为负；右边两张图里，颜色越深，两个位置的余弦相似度越大：

# %%
from regard.attention.multi_head import Rotary
from regard.layers import Diagonal, Learned, Sinusoidal
from regard.inspection.positions import similarity
import matplotlib.pyplot as plt

sinusoidal = Sinusoidal(64)
table = sinusoidal.up_to(100)[:100]
figure, axes = plt.subplots(1, 3, figsize=(12, 3))
axes[0].imshow(table.numpy(), aspect="auto", cmap="RdBu")
axes[0].set(title="sinusoidal encoding", xlabel="feature", ylabel="position")
axes[1].imshow(similarity(sinusoidal, 64), cmap="Greys", vmin=0)
axes[1].set(title="similarity, sinusoidal", xlabel="position", ylabel="position")
axes[2].imshow(similarity(Diagonal(64), 64), cmap="Greys", vmin=0)
axes[2].set(title="similarity, diagonal", xlabel="position")

# %% [markdown] lang="en"
# ## Learned and rotary
#
# **Learned** positions are a table of parameters with one row per position, as in BERT, a text encoder, and ViT
# (chapter 10). They fit the task, but end where the table ends:

# %% [markdown] lang="zh"
# ## 可学习编码与旋转编码
#
# **可学习**的位置编码就是一张参数表，每个位置一行，文本编码器 BERT 和第 10 章的 ViT 用的是它。它能贴合任务，但表有多长，序列就只能有多长：

# %%
learned = Learned(size=32, width=64)
try:
    learned(torch.arange(40)[None], longest=40)
except regard.UserError as error:
    print(error)

# %% [markdown] lang="en"
# **Rotary** embeddings (RoPE) add nothing to x. They group the features of q and k in pairs and rotate each pair by an angle proportional
# to the position, the first pairs fast and the last ones slowly. The dot product of two rotated vectors depends only on the *distance* of
# their positions:

# %% [markdown] lang="zh"
# **旋转**编码（RoPE）不往 x 上加任何东西，而是把 q 和 k 的特征两两配对，每一对旋转一个与位置成正比的角度，前面的转得快，后面的转得慢。
# 旋转之后，两个向量的点积只和位置之*差*有关：

# %%
rotary = Rotary(8)
q, k = torch.randn(2, 1, 1, 1, 8)
score = lambda m, n: (rotary(q, torch.tensor([[m]])) * rotary(k, torch.tensor([[n]]))).sum().item()
for m, n in ((2, 0), (7, 5), (102, 100), (2, 1)):
    print(f"query at {m:3}, key at {n:3}: distance {m - n}, score {score(m, n):.4f}")

# %% [markdown] lang="en"
# The first three lines have the same distance, and the same score. On images, `Rotary2D` uses half of the features for the row and half
# for the column; the two-view models of chapter 11 use it.
#
# **Next**: [vocabulary and BPE](05_vocabulary.ipynb).

# %% [markdown] lang="zh"
# 前三行距离相同，分数也相同。在图像上，`Rotary2D` 用一半维度编码行，另一半编码列，第 11 章的双视图模型用的就是它。
#
# **下一章**：[词表与 BPE](05_vocabulary.ipynb)。
