# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 9. Autoregressive and non-autoregressive decoding
#
# The decoder of the last chapters is **autoregressive** (AT): n tokens need n passes, because each token is an input of the next, and one
# more pass for the end symbol. A **non-autoregressive** model (NAT) predicts all tokens in one pass. Two questions arise: how
# long is the translation, and what is lost when the tokens do not see each other?

# %% [markdown] lang="zh"
# # 9. 自回归与非自回归解码
#
# 前几章的解码器都是**自回归**的（AT）：每个词元都是下一个的输入，n 个词元就要跑 n 遍，句尾符号还要一遍。**非自回归**模型（NAT）一遍预测出所有词元。
# 随之而来两个问题：译文有多长？各个词元互相看不见，会损失什么？

# %%
import torch
import torch.nn.functional as F
import regard

subjects = {"I": "我", "they": "他们", "we": "我们"}
verbs = {"love": "喜欢", "eat": "吃", "buy": "买"}
objects = {"apples": "苹果", "pears": "梨", "bread": "面包", "": ""}  # a sentence may have no object: two lengths
pairs = [(f"{s} {v} {o}", f"{subjects[s]} {verbs[v]} {objects[o]}") for s in subjects for v in verbs for o in objects]
words = [word for table in (subjects, verbs, objects) for pair in table.items() for word in pair if word]
vocabulary = ["<pad>", "<bos>", "<eos>", *words]
encode = lambda text: [vocabulary.index(word) for word in text.split()]

eos = vocabulary.index("<eos>")

sources = [[*encode(english), eos] for english, _ in pairs]
targets = [encode(chinese) for _, chinese in pairs]
pad = lambda rows: torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
source, target = pad(sources), pad(targets)
source_layout, target_layout = (regard.Padded.of([len(row) for row in rows]) for rows in (sources, targets))

# %% [markdown] lang="en"
# `NATransformer` has the same encoder and decoder blocks, without the causal mask. Its decoder reads mask tokens, as many as the
# translation will be long. The length comes from a classifier over the encoder output, which predicts the *difference* between the
# lengths of target and source (here always −1, because only the source has an end symbol). Both are trained together:

# %% [markdown] lang="zh"
# `NATransformer` 的编码器块和解码器块与之前相同，只是没有因果掩码。它的解码器读入的是一串掩码词元，译文多长就有多少个。
# 长度由一个分类器根据编码器的输出来预测，预测的是译文和原文的长度之*差*（这里总是 −1，因为只有原文带句尾符号）。
# 两者一起训练：

# %%
torch.manual_seed(1)
config = regard.NATransformerConfig.small(
    len(vocabulary), width=64, hidden=128, encoder_layers=2, decoder_layers=2, heads=4, dropout=0.0, max_length_offset=4
)
model = regard.NATransformer(config)
masks = torch.full_like(target, config.mask_token)
differences = target_layout.lengths - source_layout.lengths + config.max_length_offset  # as class numbers
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(101):
    encoded = model.encode(source, source_layout)
    logits = model.logits(model.decode(masks, encoded, target_layout, source_layout))
    loss = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=0)
    loss = loss + F.cross_entropy(model.length_logits(encoded, source_layout), differences)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")

@torch.no_grad()
def translate(english: str) -> str:
    row = torch.tensor([[*encode(english), eos]])
    encoded = model.encode(row)
    length = row.shape[1] + int(model.length_logits(encoded).argmax()) - config.max_length_offset
    logits = model.logits(model.decode(torch.full((1, length), config.mask_token), encoded))  # one pass
    return " ".join(vocabulary[token] for token in logits[0].argmax(-1))

model.eval()
for english in ("I love apples", "they eat", "we buy bread"):
    print(f"{english} → {translate(english)}: 1 decoder pass instead of {len(translate(english).split()) + 1}")

# %% [markdown] lang="en"
# ## What is lost
#
# Suppose that "thank you" has two equally good translations, 谢谢 你 and 多谢 您. An autoregressive model that has written 多谢 knows
# that 您 follows. A non-autoregressive model chooses each position on its own, and half of what it considers is a mixture:

# %% [markdown] lang="zh"
# ## 损失了什么
#
# 假设 “thank you” 有两个同样好的译法：“谢谢 你”和“多谢 您”。自回归模型写下“多谢”之后，就知道后面该接“您”；
# 非自回归模型每个位置各选各的，它认为可能的组合里有一半是混搭：

# %%
first, second = {"谢谢": 0.5, "多谢": 0.5}, {"你": 0.5, "您": 0.5}
good = {("谢谢", "你"), ("多谢", "您")}
for a in first:
    for b in second:
        print(a, b, first[a] * second[b], "" if (a, b) in good else "← a mixture that no reference contains")

# %% [markdown] lang="en"
# This is the *multi-modality problem*, and the reason why non-autoregressive models are faster and less accurate. Three remedies, all in
# regard: **distillation** (train on one model's translations, which are less diverse), **mask-predict** (several passes; the least
# certain tokens are masked and predicted again) and **CTC** (the model predicts more tokens than needed, some of them blank; blanks and
# repetitions are removed). CTC needs no length classifier; a long target that is cut at the first end symbol needs none either.
# [Non-autoregressive translation](../nat.md) measures speed and quality.
#
# **Next**: [images: ViT and Swin](10_vision.ipynb).

# %% [markdown] lang="zh"
# 这就是*多模态问题*（multi-modality problem）：非自回归模型更快，却不够准，根源就在这里。常用的对策有三种，regard 都支持：
# **蒸馏**（用另一个模型的译文来训练，这些译文没那么多样）；**mask-predict**（多跑几遍，把最没把握的词元重新遮住再预测）；
# **CTC**（预测的词元比需要的多，其中可以有空白，最后去掉空白和重复）。CTC 不需要长度分类器；另一种做法是预测一个足够长的序列，再从第一个句尾符号处截断，同样不需要。
# 速度和质量各差多少，见[非自回归翻译](../nat.md)的实测。
#
# **下一章**：[图像：ViT 与 Swin](10_vision.ipynb)。
