# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 5. Vocabulary and BPE
#
# A model computes with vectors. The way from text to vectors: **text → tokens → indices → rows of the embedding table**. The
# **vocabulary** is the list of all tokens, and the embedding of a token is its row in a table of parameters.
# With whole words as tokens, the table has a row for every word form, and unseen words have none:

# %% [markdown] lang="zh"
# # 5. 词表与 BPE
#
# 模型只会算向量。从文本到向量要走几步：**文本 → 词元 → 下标 → 嵌入表中的一行**。**词表**（vocabulary）列出所有的词元，
# **嵌入**（embedding）就是词元在一张参数表里对应的那一行。
# 如果直接把词当作词元，那么每种词形都要占一行，没见过的词则一行也没有：

# %%
import torch
import regard

corpus = [
    "I love apples", "I love pears", "she loves apples", "he loved the old tree", "the oldest tree", "a newer tree",
    "the lowest price", "a lower price", "the newest apple", "I am human", "he is a human",
] * 5
words = sorted({word for line in corpus for word in line.split()})
index = {word: i for i, word in enumerate(words)}
print(len(words), "words:", words)
print("apples:", index["apples"], " newer:", index["newer"], " lover:", index.get("lover"))

# %% [markdown] lang="en"
# **Byte pair encoding (BPE)** starts from single characters and joins the most frequent neighbours, again and again. Frequent words
# become one token, rare words a few. With bytes as the last resort, every text has an encoding. The first eight merges on our corpus:

# %% [markdown] lang="zh"
# **BPE**（byte pair encoding）从单个字符出发，反复合并出现最频繁的相邻对。常见词最后变成一个词元，罕见词拆成几个。
# 再以字节兜底，任何文本都能编码。在这份语料上，前八次合并是：

# %%
from collections import Counter

sequences = Counter({tuple(word): count for word, count in Counter(" ".join(corpus).split()).items()})
for step in range(8):
    pairs = Counter()
    for symbols, count in sequences.items():
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] += count
    (a, b), count = max(pairs.items(), key=lambda item: (item[1], item[0]))
    merged = Counter()
    for symbols, frequency in sequences.items():
        joined, i = [], 0
        while i < len(symbols):
            match = symbols[i : i + 2] == (a, b)
            joined.append(a + b if match else symbols[i])
            i += 2 if match else 1
        merged[tuple(joined)] += frequency
    sequences = merged
    print(f"merge {step + 1}: {a} + {b} → {a + b} ({count} times)")

# %% [markdown] lang="en"
# regard learns BPE with the `tokenizers` library. The first tokens are special: padding `<pad>`, the begin `<bos>` and the end `<eos>` of a
# sentence. ▁ stands for a space, so that the text can be restored exactly. Of the 320 tokens below, 256 are the bytes:

# %% [markdown] lang="zh"
# regard 用 `tokenizers` 库学习 BPE。最前面的几个是特殊词元：填充 `<pad>`、句首 `<bos>` 和句尾 `<eos>`。▁ 表示空格，这样才能一字不差地还原文本。
# 下面的词表有 320 个词元，其中 256 个是字节：

# %%
tokenizer = regard.Tokenizer.train(corpus, size=320)
print("special tokens:", tokenizer.vocabulary[:3])
for text in ("I love apples", "the slowest lover", "我喜欢苹果"):
    ids = tokenizer.encode(text)
    print(tokenizer.tokens(ids), "→", len(ids), "tokens →", tokenizer.decode(ids))
    assert tokenizer.decode(ids) == text

# %% [markdown] lang="en"
# Known words are one token, new words are assembled from known parts, and Chinese, which this tokenizer has never seen, becomes bytes.
#
# An index selects a row of the embedding table, a matrix of parameters. Looking up a row is the same as multiplying a one-hot vector
# with the table, only without the multiplications:

# %% [markdown] lang="zh"
# 见过的词各是一个词元，新词由已有的片段拼成；这个分词器没见过中文，于是退化成字节。
#
# 下标选出嵌入表（一个参数矩阵）中的一行。查表等价于用 one-hot 向量去乘这个矩阵，只是省掉了乘法：

# %%
table = torch.randn(len(tokenizer.vocabulary), 8)
ids = torch.tensor(tokenizer.encode("I love apples"))
one_hot = torch.nn.functional.one_hot(ids, len(table)).float()
assert torch.allclose(table[ids], one_hot @ table)
print("tokens × width:", tuple(table[ids].shape))
print(f"table of 32,000 tokens and width 512: {32_000 * 512:,} parameters")

# %% [markdown] lang="en"
# **Next**: [the encoder and the decoder](06_encoder_decoder.ipynb).

# %% [markdown] lang="zh"
# **下一章**：[编码器与解码器](06_encoder_decoder.ipynb)。
