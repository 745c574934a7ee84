# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown] lang="en"
# # 6. The encoder and the decoder
#
# All parts are there; now they are stacked:
#
# - the source tokens become embeddings plus positions, and pass through a stack of **encoder blocks**: the encoder output;
# - the target tokens so far become embeddings plus positions, and pass through a stack of **decoder blocks**, which also look at the
#   encoder output;
# - a linear layer turns each vector of the decoder output into *logits*: one score for every token of the vocabulary, which says how
#   likely it is next.
#
# An encoder block is self-attention and a **feed-forward layer**: two linear layers with a ReLU between them, applied to every token
# on its own. Each is followed by *Add & Norm*: add the input (residual connection), then normalise (LayerNorm). In a few lines:

# %% [markdown] lang="zh"
# # 6. 编码器与解码器
#
# 零件都齐了，现在把它们叠起来：
#
# - 源端词元变成嵌入，加上位置编码，经过一叠**编码器块**，得到编码器的输出；
# - 已有的目标端词元同样变成嵌入，加上位置编码，经过一叠**解码器块**，其间还要看编码器的输出；
# - 最后用一个线性层把解码器输出的每个向量变成 *logits*：词表里每个词元一个分数，表示它是下一个词元的可能性有多大。
#
# 一个编码器块由自注意力和**前馈层**组成。前馈层是两个线性层，中间夹一个 ReLU，对每个词元单独计算。两部分后面都接 *Add & Norm*：
# 先加上输入（残差连接），再归一化（层归一化，LayerNorm）。写成代码只有几行：

# %%
import torch
from torch import nn
import regard
from regard.layers import EncoderBlock, FeedForward

torch.manual_seed(0)
block = EncoderBlock(regard.Attention(width=512, heads=8), FeedForward(512, hidden=2048, activation="relu"), norm="post")
x = torch.randn(1, 5, 512)

y = block.norm1(x + block.attention(x))        # Add & Norm after self-attention
y = block.norm2(y + block.feed_forward(y))     # Add & Norm after the feed-forward layer, 512 → 2048 → 512
assert torch.allclose(y, block(x), atol=1e-5)
print("equal to EncoderBlock; output", tuple(y.shape))

# %% [markdown] lang="en"
# The paper normalises *after* the addition (post-norm). Vision models and most later models normalise the input of each sublayer
# (pre-norm): x + attention(norm(x)). regard has both: `norm="post"` and `norm="pre"`.
#
# Why residual connections? They are said to keep gradients from vanishing, because the gradient has a path around every sublayer
# (attention and the feed-forward layer are the sublayers of a block). We measure the gradient that arrives at the input of a stack of 12
# pre-norm blocks, with the residual connections and without:

# %% [markdown] lang="zh"
# 论文是先相加*后*归一化（post-norm）。视觉模型和后来的大多数模型先对子层的输入做归一化（pre-norm）：x + attention(norm(x))。
# 两种写法 regard 都支持，用 `norm="post"` 或 `norm="pre"` 选择。
#
# 为什么要残差连接？一般的说法是防止梯度消失：块里的注意力和前馈层各是一个子层，有了残差连接，梯度可以绕过每个子层直接往回传。
# 来量一下：12 个 pre-norm 块叠在一起，分别保留和去掉残差连接，看传到输入端的梯度有多大：

# %%
def input_gradient(residual: bool) -> float:
    torch.manual_seed(0)
    x = torch.randn(1, 8, 64, requires_grad=True)
    y = x
    for _ in range(12):
        attention, feed_forward, norm = regard.Attention(64, 4), FeedForward(64, 256), nn.LayerNorm(64)
        for sublayer in (attention, feed_forward):
            y = (y if residual else 0) + sublayer(norm(y))
    y.square().mean().backward()
    return x.grad.norm().item()

print(f"gradient at the input: {input_gradient(True):.1e} with residual connections, {input_gradient(False):.1e} without")

# %% [markdown] lang="en"
# Without them less than a tenth of the gradient is left, after 12 blocks only.
#
# A **decoder block** has a third sublayer between the two: cross-attention, in which the target tokens attend to the encoder output.
# Its self-attention is causal. The base model of the paper has six blocks of each kind; the blocks share no weights. There is only
# one embedding table: source, target and the last linear layer share it.

# %% [markdown] lang="zh"
# 去掉之后，梯度只剩不到十分之一，而这才 12 个块。
#
# **解码器块**在自注意力和前馈层之间多一个子层：交叉注意力，目标端的词元通过它去看编码器的输出。解码器的自注意力带因果掩码。
# 论文的 base 模型编码器和解码器各有六层，层与层之间不共享权重。
# 嵌入表只有一张，由源端、目标端和最后的线性层共用。

# %%
config = regard.TransformerConfig.base(vocab=32_000)
model = regard.Transformer(config)
count = lambda module: sum(parameter.numel() for parameter in module.parameters())
print(f"encoder {count(model.encoder):,} + decoder {count(model.decoder):,} + embedding {count(model.source_embedding):,} parameters")
assert not {id(p) for p in model.encoder[0].parameters()} & {id(p) for p in model.encoder[1].parameters()}

source = torch.randint(3, 32_000, (1, 7))   # 7 source tokens
target = torch.randint(3, 32_000, (1, 4))   # 4 target tokens
model.eval()
encoded = model.encode(source)
decoded = model.decode(target, encoded)
print("encoder output", tuple(encoded.shape), " decoder output", tuple(decoded.shape), " logits", tuple(model.logits(decoded).shape))

# %% [markdown] lang="en"
# ## Vectors that know their context
#
# The embedding of a token is the same in every sentence. The encoder output is not: it contains what the token found when it looked at
# the others. Even an untrained encoder shows it. The same token 100 in two sentences:

# %% [markdown] lang="zh"
# ## 上下文相关的向量
#
# 一个词元的嵌入在哪个句子里都一样，编码器的输出则不同：里面已经有了它从其他词元那里看来的信息。没有训练过的编码器也是如此。
# 同一个词元 100 放在两个句子里：

# %%
first, second = torch.tensor([[100, 5, 6]]), torch.tensor([[100, 8, 9]])
embedding = model.source_embedding.weight
a, b = model.encode(first)[0, 0], model.encode(second)[0, 0]
print("embedding equal:", torch.equal(embedding[first[0, 0]], embedding[second[0, 0]]))
print(f"similarity of the encoder outputs: {torch.cosine_similarity(a, b, 0):.2f}")

# %% [markdown] lang="en"
# These vectors are useful on their own, as features for classifiers: `regard embed`, or `translator.embed(...)`.
#
# **Next**: [training](07_training.ipynb).

# %% [markdown] lang="zh"
# 这些向量本身就很有用，可以直接当作分类器的特征：命令行用 `regard embed`，代码里用 `translator.embed(...)`。
#
# **下一章**：[训练](07_training.ipynb)。
