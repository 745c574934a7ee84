# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 2. Masks, and where q, k and v come from
#
# A translator has two halves: the **encoder** reads the source sentence, the **decoder** writes the translation. For "I love apples" it
# writes 我 喜欢 苹果 (I, love, apples) from left to right. When it learns to predict 喜欢, it must not see 喜欢 or 苹果. The
# **causal mask** forbids every query to attend to later positions.

# %% [markdown] lang="zh"
# # 2. 掩码，以及 q、k、v 从哪来
#
# 翻译模型分两半：**编码器**（encoder）读原文，**解码器**（decoder）写译文。原文是 “I love apples”，解码器就从左到右写出“我 喜欢 苹果”。
# 训练它预测“喜欢”的时候，不能让它看到“喜欢”和“苹果”。**因果掩码**（causal mask）的作用就是不让任何一个查询看到它后面的位置。

# %%
import torch

torch.manual_seed(0)
words = ["我", "喜欢", "苹果"]
q, k, v = torch.randn(3, 1, 1, 3, 4)  # three tokens, one head of width 4
scores = q @ k.transpose(-2, -1) / 4**0.5
allowed = torch.ones(3, 3, dtype=torch.bool).tril()
masked = scores.masked_fill(~allowed, -torch.inf)
print(masked[0, 0])
for word, row in zip(words, masked[0, 0].softmax(-1).tolist(), strict=True):
    print(word, [round(weight, 2) for weight in row])

# %% [markdown] lang="en"
# A forbidden score is −∞, so its weight is e^(−∞) = **exactly** 0, and the remaining weights still sum to 1. In regard a mask says what
# is *allowed*, and the causal mask has a name:

# %% [markdown] lang="zh"
# 不允许看的位置分数是 −∞，权重 e^(−∞) **恰好**等于 0，剩下的权重加起来仍然是 1。在 regard 里，掩码表示的是*可以看*什么；
# 因果掩码有现成的写法：

# %%
import regard

causal = regard.attend(q, k, v, regard.Mask(causal=True))
assert torch.allclose(causal, masked.softmax(-1) @ v, atol=1e-6)

changed_k, changed_v = k.clone(), v.clone()
changed_k[..., 2, :], changed_v[..., 2, :] = 100.0, 100.0  # another third word
changed = regard.attend(q, changed_k, changed_v, regard.Mask(causal=True))
print("the first two outputs are unchanged:", torch.equal(causal[..., :2, :], changed[..., :2, :]))

# %% [markdown] lang="en"
# Masks have a second use. Sentences of a batch have different lengths; the shorter ones are filled up with padding, to which no token
# may attend. A query that may attend to nothing at all has the context zero, not NaN.

# %% [markdown] lang="zh"
# 掩码还有第二个用处。一个 batch 里的句子长短不一，短句要用填充（padding）补齐，填充的部分谁都不能看。如果某个查询什么都不能看，
# 它的输出是零向量，而不是 NaN。

# %%
padded = regard.Padded.of([3, 1, 0])  # three rows: 3 tokens, 1 token, no token
mask = regard.Mask(keys=padded)
print(mask.dense(3, 3, torch.device("cpu"))[:, 0, 0])  # what the first query of each row may attend to
q3, k3, v3 = torch.randn(3, 3, 1, 3, 4)
print(regard.attend(q3, k3, v3, mask)[2].abs().max())  # the row without tokens

# %% [markdown] lang="en"
# ## q, k and v are projections of x
#
# Where do q, k and v come from? Every token has one vector x. Three learned matrices turn it into three roles:
#
# - **q = x·W_Q**: what this token is looking for,
# - **k = x·W_K**: what this token offers to others,
# - **v = x·W_V**: what it passes on when others attend to it.
#
# They may have different widths: q and k must match each other, v only decides the width of the output.

# %% [markdown] lang="zh"
# ## q、k、v 都是 x 的投影
#
# q、k、v 是从哪来的？每个词元只有一个向量 x，三个可学习的矩阵把它变成三种角色：
#
# - **q = x·W_Q**：这个词元想找什么；
# - **k = x·W_K**：这个词元能提供什么；
# - **v = x·W_V**：别人看它的时候，它交出什么内容。
#
# 它们的宽度可以不同：q 和 k 的宽度必须一致，v 的宽度只决定输出的宽度。

# %%
x = torch.randn(1, 3, 8)  # three tokens of width 8
W_Q, W_K, W_V = torch.randn(8, 4), torch.randn(8, 4), torch.randn(8, 6)
q, k, v = x @ W_Q, x @ W_K, x @ W_V
print(tuple(q.shape), tuple(k.shape), tuple(v.shape))
context = regard.attend(q[:, None], k[:, None], v[:, None])
print("context:", tuple(context.shape))

# %% [markdown] lang="en"
# One often reads that every token scores itself highest. This holds if q and k are both x, because a vector is most similar to itself.
# With two separate matrices it does not hold. We count how often a token chooses itself, with 16 tokens and 100 random choices of the
# matrices:

# %% [markdown] lang="zh"
# 常有人说，每个词元给自己的分数最高。如果 q 和 k 都直接取 x，确实如此，因为向量和自己最像。可是有了两个不同的矩阵，这个说法就不成立了。
# 数一数词元选中自己的比例，每次 16 个词元，矩阵随机取 100 次：

# %%
def chooses_itself(project) -> float:
    counts = [(project(x) == torch.arange(16)).float().mean() for x in torch.randn(100, 16, 64)]
    return torch.stack(counts).mean().item()

def with_matrices(x):
    W_Q, W_K = torch.randn(2, 64, 64)
    return (x @ W_Q @ (x @ W_K).T).argmax(-1)

print(f"q = k = x:          {chooses_itself(lambda x: (x @ x.T).argmax(-1)):.2f}")
print(f"q = xW_Q, k = xW_K: {chooses_itself(with_matrices):.2f}, by chance {1 / 16:.2f}")

# %% [markdown] lang="en"
# What a token looks at is therefore learned: training changes W_Q and W_K.
#
# With x from one sequence this is **self-attention**. In **cross-attention**, q comes from the decoder and k and v come from the
# encoder: the translation asks, the source answers. One module does both (chapter 3 explains its heads):

# %% [markdown] lang="zh"
# 可见词元看哪里是学出来的：训练改变的正是 W_Q 和 W_K。
#
# x 全部来自同一个序列，就是**自注意力**（self-attention）。在**交叉注意力**（cross-attention）里，q 来自解码器，k 和 v 来自编码器：
# 译文提问，原文回答。两者用的是同一个模块（其中的头见第 3 章）：

# %%
attention = regard.Attention(width=8, heads=2)
target, source = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
print("self: ", tuple(attention(target).shape))
print("cross:", tuple(attention(target, source).shape), "for 3 target tokens and 5 source tokens")
print("W_Q, W_K and W_V in one matrix:", tuple(attention.qkv.weight.shape))

# %% [markdown] lang="en"
# **Next**: [several heads](03_heads.ipynb).

# %% [markdown] lang="zh"
# **下一章**：[多头注意力](03_heads.ipynb)。
