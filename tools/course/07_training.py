# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 7. Training
#
# We train a translator in a few seconds. Three subjects, three verbs and four objects make 36 sentences; 30 of them are for training, and
# six are held out to test the model on sentences that it has never seen. The Chinese words are separated by spaces, so that every word
# is one token.

# %% [markdown] lang="zh"
# # 7. 训练
#
# 训练一个翻译模型，几秒就够。三个主语、三个动词、四个宾语，一共组成 36 个句子：30 句用来训练，留出 6 句做测试，模型从来没有见过它们。
# 为了看得清楚，中文按词分开写，一个词就是一个词元。

# %%
import torch
import torch.nn.functional as F
import regard

subjects = {"I": "我", "they": "他们", "we": "我们"}
verbs = {"love": "喜欢", "eat": "吃", "buy": "买"}
objects = {"apples": "苹果", "pears": "梨", "bread": "面包", "fish": "鱼"}
pairs = [(f"{s} {v} {o}", f"{subjects[s]} {verbs[v]} {objects[o]}") for s in subjects for v in verbs for o in objects]
test = [("I love apples", "我 喜欢 苹果"), *pairs[7::7]]
train = [pair for pair in pairs if pair not in test]
print(len(train), "sentences for training,", len(test), "held out:", test)

vocabulary = ["<pad>", "<bos>", "<eos>", *subjects, *verbs, *objects, *subjects.values(), *verbs.values(), *objects.values()]
index = {word: i for i, word in enumerate(vocabulary)}
encode = lambda text: [index[word] for word in text.split()]
bos, eos = index["<bos>"], index["<eos>"]

# %% [markdown] lang="en"
# ## Teacher forcing
#
# The decoder reads the *reference* shifted by one: it reads `<bos> 我 喜欢 苹果` and has to predict `我 喜欢 苹果 <eos>`. The causal mask
# lets all positions predict at the same time, each from the tokens before it. The loss is the cross-entropy with label smoothing 0.1
# (the target has the probability 0.9 and the rest is spread over the vocabulary), so even a perfect model has a loss above 0: here
# 0.611, the entropy of this target.

# %% [markdown] lang="zh"
# ## Teacher forcing
#
# 解码器读的是右移一位的*参考译文*：读入 `<bos> 我 喜欢 苹果`，要预测 `我 喜欢 苹果 <eos>`。有了因果掩码，所有位置可以同时预测，
# 每个位置都只依据它前面的内容。损失是交叉熵，标签平滑取 0.1，也就是正确的词元占 0.9 的概率，其余分给整个词表，所以再好的模型损失也不会到 0，
# 最低是目标分布的熵，这里为 0.611。

# %%
source = torch.tensor([[*encode(english), eos] for english, _ in train])        # I love apples <eos>
target_in = torch.tensor([[bos, *encode(chinese)] for _, chinese in train])     # <bos> 我 喜欢 苹果
target_out = torch.tensor([[*encode(chinese), eos] for _, chinese in train])    # 我 喜欢 苹果 <eos>

def new_model() -> regard.Transformer:
    torch.manual_seed(1)
    config = regard.TransformerConfig.small(
        len(vocabulary), width=64, hidden=128, encoder_layers=2, decoder_layers=2, heads=4, dropout=0.0
    )
    return regard.Transformer(config)

def cross_entropy(logits: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.transpose(1, 2), target_out, label_smoothing=0.1)

model = new_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(121):
    loss = cross_entropy(model(source, target_in))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step:3}: loss {loss.item():.3f}")

# %% [markdown] lang="en"
# ## Translating: one token after the other
#
# To translate, there is no reference to read. **Autoregressive decoding** starts with `<bos>`, takes the most probable next token, feeds
# it back, and continues until the model predicts `<eos>`:

# %% [markdown] lang="zh"
# ## 翻译：一次一个词元
#
# 翻译的时候没有参考译文可读。**自回归解码**从 `<bos>` 开始，取概率最大的词元，接在后面再喂回去，直到模型给出 `<eos>`：

# %%
@torch.no_grad()
def translate(model: regard.Transformer, english: str) -> str:
    """Return the translation of a sentence: start symbol in, one token out, fed back until the end symbol."""
    state = model.start(model.encode(torch.tensor([[*encode(english), eos]])))  # keys and values are kept in the state
    token, words = bos, []
    while len(words) < 10:
        logits = model.step(torch.tensor([[token]]), state)
        token = int(logits[0, 0].argmax())
        if token == eos:
            break
        words.append(vocabulary[token])
    return " ".join(words)

model.eval()
for english, chinese in test:
    print(f"{english} → {translate(model, english)}  (reference: {chinese})")

# %% [markdown] lang="en"
# All six held-out sentences are translated correctly: the model has learned words, not sentences.
#
# ## Scheduled sampling
#
# In training the decoder always continues a correct prefix. In use it continues its own, which may contain a mistake: *exposure bias*.
# Scheduled sampling mixes the model's own predictions into the decoder input, more and more of them. For a Transformer this takes two
# passes: predict every token under teacher forcing, replace some inputs by these predictions, and train on the second pass.

# %% [markdown] lang="zh"
# 留出的六句全部译对：模型学到的是词，不是整句。
#
# ## 计划采样
#
# 训练时解码器总是接着正确的前缀往下写；实际使用时接的是它自己写的前缀，里面可能有错，这叫*曝光偏差*（exposure bias）。
# **计划采样**（scheduled sampling）把模型自己的预测混进解码器的输入，比例逐渐增大。Transformer 的做法分两遍：先用 teacher forcing 预测每个词元，
# 再把一部分输入换成这些预测，用第二遍的结果训练。

# %%
def mix_in_predictions(model, share: float) -> torch.Tensor:
    with torch.no_grad():
        predicted = model(source, target_in).argmax(-1)
    own = torch.cat((target_in[:, :1], predicted[:, :-1]), 1)  # the prediction for each input position; BOS stays
    return torch.where(torch.rand(target_in.shape) < share, own, target_in)

mixed = mix_in_predictions(new_model(), share=0.5)  # an untrained model makes many mistakes
print("reference:", [vocabulary[token] for token in target_in[0]])
print("mixed:    ", [vocabulary[token] for token in mixed[0]])

# %% [markdown] lang="en"
# In a recipe, the file with the settings of a run, this is `objective.scheduled_sampling: {half_life: 2000}`: after 2000
# steps half of the decoder inputs are predictions.
#
# ## Guided attention
#
# Attention can be steered from outside. One way is a further loss: the cross-attention of a target word should be on the source word that
# it translates. In our sentences word i of the source belongs to word i of the target, so the loss pulls the weights to the diagonal:

# %% [markdown] lang="zh"
# 在 recipe（一次训练的设置文件）里对应的是 `objective.scheduled_sampling: {half_life: 2000}`，即训练 2000 步之后，
# 解码器的输入有一半是预测。
#
# ## 引导注意力
#
# 注意力可以从外部引导，这叫**引导注意力**（guided attention）。一种办法是再加一项损失：哪些词彼此对应，交叉注意力的权重就应该落在哪里。
# 在我们的句子里，原文第 i 个词正好对应译文第 i 个词，于是这项损失把权重往对角线上拉：

# %%
from regard.decoding.generator import collect_cross_attention
import matplotlib.pyplot as plt

def train_model(guidance: float, steps: int = 60) -> tuple[float, torch.Tensor]:
    """Train a new model; return its loss and its cross-attention: (layers, sentences, target tokens, source tokens)."""
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        with collect_cross_attention([model]) as collected:  # one tensor for each layer, the mean of its heads
            loss = cross_entropy(model(source, target_in))
        weights = torch.stack(collected)
        diagonal = weights.diagonal(dim1=-2, dim2=-1)
        optimizer.zero_grad()
        (loss - guidance * diagonal.log().mean()).backward()
        optimizer.step()
    return loss.item(), weights.detach()

figure, axes = plt.subplots(1, 2, figsize=(7, 2.6))
for axis, guidance in zip(axes, (0.0, 1.0), strict=True):
    loss, weights = train_model(guidance)
    share = weights.diagonal(dim1=-2, dim2=-1).mean()
    print(f"weight of the guidance {guidance}: loss {loss:.3f}, attention on the corresponding word {share:.2f}")
    axis.imshow(weights.mean(0)[0].numpy(), cmap="Greys", vmin=0, vmax=1)
    axis.set(title=f"guidance {guidance}", xlabel="source token", ylabel="target token")
    axis.set(xticks=range(4), xticklabels=[*train[0][0].split(), "<eos>"], yticks=range(4), yticklabels=range(1, 5))

# %% [markdown] lang="en"
# Both losses are about equal; with guidance the attention map can be read as a word alignment. The picture shows the weights of the
# first sentence; token 4 of the target is `<eos>`. In a recipe:
# `objective.guided_attention: {prior: diagonal, steps: 1000}`, with a weight that decreases to zero over these steps.
# [Objectives](../objectives.md) measures both methods on a larger corpus.
#
# The other way changes the scores themselves: a bias is added to them before the softmax, in training or afterwards. A bias of 3 on
# the second of four equal keys:

# %% [markdown] lang="zh"
# 两个模型的损失差不多；有引导的那个，注意力图可以直接当词对齐来读。图中是第一个句子的权重，译文的第 4 个词元是 `<eos>`。在 recipe 里写
# `objective.guided_attention: {prior: diagonal, steps: 1000}`，引导的权重在这 1000 步里逐渐降到零。
# 这两种方法在更大的语料上效果如何，见[训练目标](../objectives.md)的实测。
#
# 另一种办法是直接改分数：在 softmax 之前加上一个偏置（bias），训练时可以加，训练好之后也可以加。
# 四个键原本不相上下，给第二个键加 3：

# %%
q, k = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 4, 4)  # all scores are 0
v = torch.eye(4)[None, None]  # the context is the attention weights, as in chapter 1
bias = torch.tensor([0.0, 3.0, 0.0, 0.0]).view(1, 1, 1, 4)
print("without:", [round(weight, 2) for weight in regard.attend(q, k, v)[0, 0, 0].tolist()])
print("with:   ", [round(weight, 2) for weight in regard.attend(q, k, v, bias=bias)[0, 0, 0].tolist()])

# %% [markdown] lang="en"
# Swin, in chapter 10, learns such a bias for every relative position of two patches.
#
# **Next**: [search](08_search.ipynb).

# %% [markdown] lang="zh"
# 第 10 章的 Swin 就为两个图块的相对位置学了这样一个偏置。
#
# **下一章**：[搜索](08_search.ipynb)。
