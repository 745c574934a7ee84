# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 8. Search: greedy, beam, length penalty
#
# A trained model gives the probability of every next token. A translation is a whole sequence, and its probability is the product over
# its tokens (the sum of the log-probabilities). Which sequence is the most probable? Trying all of them is impossible: with 32,000
# tokens and 20 positions there are 32,000²⁰. We use a model small enough to try everything: a table of probabilities.

# %% [markdown] lang="zh"
# # 8. 搜索：贪心、束搜索与长度惩罚
#
# 训练好的模型给出下一个词元的概率。译文是一整个序列，它的概率是各个词元概率的乘积（取对数就是求和）。哪个序列概率最大？
# 穷举做不到：32,000 个词元、20 个位置，就有 32,000²⁰ 种可能。这里用一个小到可以穷举的“模型”：一张概率表。

# %%
import math
from itertools import product

table = {  # the next token given the tokens so far; . ends the sentence
    "": {"A": 0.5, "B": 0.4, ".": 0.1},
    "A": {"A": 0.35, "B": 0.35, ".": 0.3},
    "B": {"A": 0.05, "B": 0.05, ".": 0.9},
}
next_tokens = lambda prefix: table.get(prefix, {"A": 0.1, "B": 0.1, ".": 0.8})

def greedy(prefix: str = "", probability: float = 1.0) -> tuple[str, float]:
    """Always take the most probable next token."""
    token, p = max(next_tokens(prefix).items(), key=lambda item: item[1])
    return (prefix + token, probability * p) if token == "." else greedy(prefix + token, probability * p)

def probability(sentence: str) -> float:
    return math.prod(next_tokens(sentence[:i])[token] for i, token in enumerate(sentence))

everything = ["".join(letters) + "." for n in range(5) for letters in product("AB", repeat=n)]
best = max(everything, key=probability)
print(f"greedy:     {greedy()[0]} with probability {greedy()[1]:.3f}")
print(f"exhaustive: {best} with probability {probability(best):.3f}")

# %% [markdown] lang="en"
# Greedy search takes A, which looks better at first, and never learns that B leads to a better sentence. **Beam search** keeps the k
# best prefixes. It lies between greedy (k = 1) and exhaustive search (k = everything). A prefix that is less probable than the best
# finished sentence is dropped, because more tokens only make it less probable; therefore the search below ends after two steps:

# %% [markdown] lang="zh"
# 贪心搜索一上来就选了看起来更好的 A，再也没机会知道 B 会带来更好的句子。**束搜索**（beam search）每一步保留最好的 k 个前缀，
# 介于贪心（k = 1）和穷举（k = 全部）之间。如果一个前缀的概率已经比写完的句子还低，就可以丢掉，因为接着写下去概率只会更低。
# 所以下面的搜索两步就结束了：

# %%
def beam_search(k: int) -> list[tuple[str, float]]:
    beam, finished = [("", 1.0)], []
    while beam:
        candidates = [(prefix + token, p * q) for prefix, p in beam for token, q in next_tokens(prefix).items()]
        candidates.sort(key=lambda candidate: -candidate[1])
        print("  candidates:", ", ".join(f"{text} {p:.3f}" for text, p in candidates[: k + 2]))
        finished += [candidate for candidate in candidates[:k] if candidate[0].endswith(".")]
        beam = [candidate for candidate in candidates[:k] if not candidate[0].endswith(".")]
        beam = [candidate for candidate in beam if candidate[1] > max((p for _, p in finished), default=0)]
    return sorted(finished, key=lambda candidate: -candidate[1])

sentence, p = beam_search(k=2)[0]
print(f"best: {sentence} with probability {p:.3f}")

# %% [markdown] lang="en"
# ## Length penalty
#
# Every further token multiplies the probability by a number below 1, so the sum of log-probabilities prefers short sentences. A length
# penalty divides it by length^α: α = 0 is no penalty, α = 1 the mean per token. Sentence 1 is short and mediocre, sentence 2 is long
# and good at every step:

# %% [markdown] lang="zh"
# ## 长度惩罚
#
# 每多一个词元，概率就要再乘上一个小于 1 的数，所以对数概率之和天然偏爱短句。长度惩罚把它除以 length^α：α = 0 等于不惩罚，
# α = 1 就是每个词元的平均值。句子 1 短而平庸，句子 2 长，但每一步都不错：

# %%
sentences = {"sentence 1": [-1.2, -1.3], "sentence 2": [-0.6] * 6}
for alpha in (0.0, 0.6, 1.0):
    scores = {name: sum(log_probs) / len(log_probs) ** alpha for name, log_probs in sentences.items()}
    print(f"alpha {alpha}:", {name: round(score, 2) for name, score in scores.items()}, "→", max(scores, key=scores.get))

# %% [markdown] lang="en"
# ## The same in regard
#
# A real model has the same problem. We train one in a few seconds on a single sentence, 我喜欢苹果, for which four translators write
# "I like apples", three "I love apples" and three "I love eating apples":

# %% [markdown] lang="zh"
# ## 在 regard 里
#
# 真正的模型也会遇到同样的问题。下面只用一个句子训练一个模型，几秒就够：“我喜欢苹果”，四个译者译成 “I like apples”，三个译成 “I love apples”，
# 三个译成 “I love eating apples”：

# %%
import torch
import torch.nn.functional as F
import regard

translations = {"I like apples": 4, "I love apples": 3, "I love eating apples": 3}
tokenizer = regard.Tokenizer.train([*translations, "我喜欢苹果"] * 2, size=300, kind="word")
rows = [[tokenizer.BOS, *tokenizer.encode(text), tokenizer.EOS] for text, count in translations.items() for _ in range(count)]
target = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=tokenizer.PAD)
source = torch.tensor([[*tokenizer.encode("我喜欢苹果"), tokenizer.EOS]] * len(rows))

torch.manual_seed(0)
config = regard.TransformerConfig.small(
    len(tokenizer.vocabulary), width=64, hidden=128, encoder_layers=1, decoder_layers=1, heads=4, dropout=0.0
)
model = regard.Transformer(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(100):
    logits = model(source, target[:, :-1])
    loss = F.cross_entropy(logits.transpose(1, 2), target[:, 1:], ignore_index=tokenizer.PAD)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

translator = regard.Translator(model.eval(), regard.Vocabularies(tokenizer, tokenizer), ("zh", "en"))
for beam in (1, 3):
    settings = regard.SearchSettings(beam=beam, length_penalty="none")
    best = translator.hypotheses(["我喜欢苹果"], settings, trees=True)[0][0]
    print(f"beam {beam}: {best.text}, probability {math.exp(best.score):.2f}")

# %% [markdown] lang="en"
# Greedy search takes "love" (six of ten translators) and then has to choose between "apples" and "eating" (three each). The beam finds
# "I like apples" (four of ten). Without a length penalty, the score is the log-probability. `SearchSettings` holds the width of the
# beam, the length penalty and more; with `trees=True` a hypothesis carries the whole beam, as the web page draws it. The hypotheses with
# a probability above 1 %:

# %% [markdown] lang="zh"
# 贪心搜索先选了 “love”（十个译者里有六个这么译），接下来只能在 “apples” 和 “eating” 里选（各三个）。束搜索则找到了 “I like apples”（十个里有四个）。
# 不加长度惩罚时，得分就是对数概率。
# `SearchSettings` 里有束宽、长度惩罚等设置；加上 `trees=True`，结果会带上整棵搜索树，网页上画的就是它。概率超过 1% 的候选如下：

# %%
for item in best.tree:
    if (p := math.exp(item.node.cumulative_log_prob)) > 0.01:
        print(f"step {item.node.step}: {item.subword:10} probability so far {p:.2f}  {item.node.outcome}")

# %% [markdown] lang="en"
# **Next**: [autoregressive and non-autoregressive decoding](09_nat.ipynb).

# %% [markdown] lang="zh"
# **下一章**：[自回归与非自回归解码](09_nat.ipynb)。
