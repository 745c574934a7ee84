// What each section shows and why, in two or three sentences.

export const STRINGS = {
  en: {
    /** By section; called with the model. */
    prose: {
      translate: () => "The model has translated the sentence token by token and kept the best translations that it found. Point at "
        + "a target token to see which source tokens its cross-attention read, averaged over all layers and heads: this is the "
        + "alignment. The model was not taught it, but learned it from sentence pairs.",
      attention: ({ kind }) => "One square per head: each row is a query and adds up to 1, and the cells that stand out are the keys that it reads. Heads "
        + "differ because each has projections of its own; some look at what is near, some at one kind of word or part. "
        + ({ nat: "This decoder has no mask: every position may read every other one.",
          transformer: "The decoder's self-attention is a triangle, because a position must not read the tokens that it has yet to predict.",
        }[kind] ?? ""),
      why: () => "Attention says what a position reads, not what decided the word. Here padding tokens "
        + "are turned step by step into the real words; the score of the chosen word changes on the way, and every word that the "
        + "model has read receives its share of the change. "
        + "With another word beside it, the question becomes why this one and not that one.",
      arithmetic: () => "One query of one head, computed with the model's own numbers. A query q states what its position looks "
        + "for, a key k what each token offers, a value v what the token hands over; everything else is products, sums and one softmax.",
      beam: ({ kind }) => (kind === "nat"
        ? "All positions are predicted in parallel, so a translation takes one pass or a few iterations instead of one step per "
          + "token. Words that depend on each other can then contradict each other, which further iterations repair."
        : "Each column is one decoding step. Greedy search would keep only the best token of a step; beam search keeps several "
          + "hypotheses, because a weaker first token can lead to a better sentence. The length penalty keeps it from preferring short ones."),
      change: () => "An experiment on the model: switch off a head, sharpen the attention or change a word, and see whether the "
        + "translation changes. A head whose removal changes nothing was not needed for this sentence: other heads and layers suffice.",
      positions: () => "Attention by itself does not know the order of the tokens. A position encoding gives every position a vector "
        + "of its own, added to the embedding or used to rotate q and k; in most kinds, positions are less and less similar with the distance, but not evenly.",
      image: ({ sections }) => (sections.includes("views")
        ? "Every patch of the first view looks for what it shows in the second view. The bright patches there are where the "
          + "marked patch found its match; a trained model finds the same point of the scene."
        : "The image is a sequence of patches, and attention shows from which of them the model took its answer. Bright patches "
          + "contributed most; click one to see what that patch itself looks at."),
      training: ({ sections }) => "The loss says how surprised the model is by the correct answer; training lowers it step by step. The training "
        + "loss can stay above that of the validation, because dropout and label smoothing make training harder. "
        + (sections.includes("attention") ? "The attention of each checkpoint, below, shows how the map forms." : ""),
    },
    /** By step of the arithmetic; called with the results. */
    stepProse: {
      project: ({ rotary, cross, pre_norm: isPreNorm }) => (isPreNorm
        ? "This model first normalises the vector x of a token: x̂ = LayerNorm(x). x̂ is" : "The vector x of a token is")
        + " multiplied by three learned matrices: q is what this position looks for, k what each token offers, v what it hands over."
        + (cross ? " In cross-attention, k and v are computed from h, the encoder output." : "") + (rotary ? " q and k are then rotated (↻) by an angle that depends on their position." : ""),
      product: () => "The dot product q·k is large if what is looked for and what is offered point in the same direction. "
        + "The formula shows the key with the largest weight.",
      scale: () => "A sum of d products grows with √d. Dividing by √d keeps softmax out of its flat ends, where one weight is 1 "
        + "and there is nothing left to learn from.",
      mask: () => "Keys that a query must not read, such as later tokens in the decoder, get the score −∞.",
      softmax: () => "Softmax turns scores into weights: e to the power of each score, divided by the sum over all keys. The weights are "
        + "positive and add up to 1; a masked key has e^−∞ = 0.",
      values: () => "The output of the head is the mean of the values, weighted by the softmax: mostly the value of the token that "
        + "fits best, with a little of the others.",
      concatenate: () => "All heads do this in parallel with matrices of their own. Their outputs are joined and mixed by one more "
        + "matrix, W_O, so that later layers can use what several heads have found.",
      add: ({ pre_norm: isPreNorm }) => "The result y is added to what the position already knew, x: attention adds information and replaces none. "
        + (isPreNorm ? "This model normalises the input of each sublayer instead (x̂ in step 1)."
          : "LayerNorm then brings the vector to mean 0 and deviation 1, so that many layers can follow each other."),
      transform: () => "At the end of the layer, every position by itself passes through two linear layers with an activation between them. "
        + "Attention moves information between positions; the feed-forward layer works on it.",
    },
    residual: ({ pre_norm: isPreNorm }) => (isPreNorm ? "x, before LayerNorm and the sublayer" : "x, before the sublayer"),
    update: "y, what attention adds (the output projection)",
    added: "the result",
    hidden: "inside the feed-forward layer, after the activation",
    transformed: "what the feed-forward layer adds",
    normalisation: (mean, deviation, result) => `LayerNorm: (value − ${mean}) / ${deviation}, × γ + β → ${result}`,
    feedForward: (width, hidden, activation) =>
      `${width} → ${hidden.length} → ${width}: ${activation}(x·W₁ + b₁)·W₂ + b₂; ${hidden.filter((value) => value > 0).length} of `
      + `${hidden.length} hidden features are positive`,
  },
  zh: {
    prose: {
      translate: () => "模型逐个词元地译出这个句子，并保留找到的几个最佳译文。指向一个目标词元，可以看到它的交叉注意力读取了哪些源词元（所有层、所有头的平均）。"
        + "这就是对齐：没有人标注过，是模型从句对中自己学到的。",
      attention: ({ kind }) => "每个方块是一个头：每一行是一个查询，权重之和为 1，颜色突出的格子是它读取的键。各头有自己的投影矩阵，所以各不相同："
        + "有的看邻近的位置，有的只看某一类词或某一类内容。"
        + ({ nat: "此解码器没有掩码，每个位置都可以读取其他所有位置。",
          transformer: "解码器自注意力呈三角形，因为一个位置不能读取尚未预测出的词元。",
        }[kind] ?? ""),
      why: () => "注意力只说明一个位置读了什么，不能说明这个词由什么决定。这里把一串填充词元逐渐换成真实的词，看所选的词得分怎样变化，再把变化分给模型读过的每一个词。"
        + "再给出另一个词，问题就成了：为什么是这个词，而不是那个词。",
      arithmetic: () => "用模型自己的数字，计算一个头的一个查询。查询 q 表示这个位置在找什么，键 k 表示每个词元能提供什么，值 v 是词元交出的内容；"
        + "其余只是乘法、加法和一次 softmax。",
      beam: ({ kind }) => (kind === "nat"
        ? "所有位置并行预测，一次或几次迭代就得到译文，不必每个词元走一步。但互相依赖的词可能彼此矛盾，后面的迭代会修正。"
        : "每一列是一步解码。贪心搜索每步只留最好的词元；束搜索保留几个候选，因为开头稍差的词元，可能通向更好的句子。长度惩罚使它不至于偏爱短句。"),
      change: () => "在模型上做实验：关掉一个头、让注意力更集中，或者换一个词，看译文是否改变。关掉某个头而译文不变，说明这个句子用不到它，有别的头和层就够了。",
      positions: () => "注意力本身不知道词元的顺序。位置编码给每个位置一个自己的向量，或者加到词嵌入上，或者用来旋转 q 和 k；多数编码里，位置越远越不相似，但变化并不均匀。",
      image: ({ sections }) => (sections.includes("views")
        ? "第一视图的每个图块都在第二视图里寻找自己的内容。其中明亮的地方，就是所选图块找到的匹配；训练好的模型会找到场景中的同一点。"
        : "图像是图块的序列，注意力显示模型根据哪些图块得出答案。明亮的图块贡献最大；点击一个图块，看它自己关注哪里。"),
      training: ({ sections }) => "损失表示正确答案让模型有多意外，训练就是一步步降低它。训练损失可能一直高于验证损失，因为训练时有 dropout 和标签平滑，题目更难。"
        + (sections.includes("attention") ? "下方是每个检查点的注意力，可以看到注意力图怎样形成。" : ""),
    },
    stepProse: {
      project: ({ rotary, cross, pre_norm: isPreNorm }) => (isPreNorm
        ? "此模型先把词元的向量 x 归一化，得到 x̂ = LayerNorm(x)。x̂ " : "词元的向量 x ")
        + "分别乘以三个学到的矩阵：q 表示这个位置在找什么，k 表示每个词元能提供什么，v 是它交出的内容。"
        + (cross ? "在交叉注意力里，k 和 v 由编码器的输出 h 算出。" : "")
        + (rotary ? "然后 q 和 k 按位置旋转一个角度（↻）。" : ""),
      product: () => "要找的和能提供的方向一致，点积 q·k 就大。算式取权重最大的键。",
      scale: () => "d 个乘积之和随 √d 增大。除以 √d，softmax 就不会落到两端平坦的地方；在那里，某个权重已经是 1，再也学不到什么。",
      mask: () => "查询不能读取的键，比如解码器里后面的词元，分数设为 −∞。",
      softmax: () => "softmax 把分数变成权重：以各个分数为指数计算 e 的幂，再除以所有键的总和。权重为正，总和为 1；被遮盖的键得到 e^−∞ = 0。",
      values: () => "这个头的输出是各个值按 softmax 权重的加权平均：主要是最匹配的那个词元的值，再加上其他词元的一点。",
      concatenate: () => "所有头用各自的矩阵并行计算。各头的输出拼接起来，再乘以矩阵 W_O 混合，后面的层就能同时用到几个头的发现。",
      add: ({ pre_norm: isPreNorm }) => "结果 y 加到这个位置原有的 x 上：注意力只添加信息，不会丢掉原有的信息。"
        + (isPreNorm ? "此模型改在每个子层的输入处做归一化（第 1 步的 x̂）。" : "然后层归一化把向量调整为均值 0、标准差 1，这样才能叠加许多层。"),
      transform: () => "一层的最后，每个位置单独经过两个线性层，中间有激活函数。注意力在位置之间传递信息，前馈网络再加工这些信息。",
    },
    residual: ({ pre_norm: isPreNorm }) => (isPreNorm ? "x：归一化和子层之前" : "x：子层之前"),
    update: "y：注意力加上的内容（即输出投影的结果）",
    added: "结果",
    hidden: "前馈网络内部，激活函数之后",
    transformed: "前馈网络加上的内容",
    normalisation: (mean, deviation, result) => `层归一化：(数值 − ${mean}) / ${deviation}，× γ + β → ${result}`,
    feedForward: (width, hidden, activation) =>
      `${width} → ${hidden.length} → ${width}：${activation}(x·W₁ + b₁)·W₂ + b₂；${hidden.length} 个隐藏特征中有 `
      + `${hidden.filter((value) => value > 0).length} 个为正`,
  },
};
