// Strings of the section "overview" and of image examples.

export const STRINGS = {
  en: {
    overviewTitle: "The whole model",
    overviewHint: "Read from the embedding of the source, at the top, to the predicted token, at the bottom. The encoder "
      + "runs once and turns every source token into a vector that knows its context. The decoder runs once per token: it "
      + "reads the tokens so far, attends to the encoder output, and its last vector becomes the probabilities of the next token.",
    overviewParallel: "Read from the embedding of the source, at the top, to the predicted tokens, at the bottom. This "
      + "model predicts all tokens in parallel. In the first pass the decoder reads MASK at every position, in each further pass only "
      + "where a token is predicted again; the last pass is shown.",
    overviewImage: "The image is cut into patches, and each patch becomes a vector, as a token of a text does. In every layer the "
      + "patches attend to each other; the last layer's vectors are averaged, or read from the class token, to find the class.",
    overviewPair: "One encoder reads both views with the same weights. The decoder continues the vectors of the first view and "
      + "looks for their matches in the second view by cross-attention.",
    overviewLegend: "Strips: one row per token, the first 24 features, blue positive and orange negative. Maps: attention weights "
      + "averaged over heads; rows are queries. Click a block to open its section.",
    stacks: { encoder: "Encoder", decoder: "Decoder", first: "Encoder, first view", second: "Encoder, second view" },
    blocks: {
      embedding: "Embedding",
      patches: "Patch embedding",
      positions: "+ Position",
      norm: "LayerNorm",
      attention: "Self-attention",
      masked: "Self-attention (decoder)",
      cross: "Cross-attention",
      feed_forward: "Feed-forward",
      addNorm: "Add & Norm",
      add: "Add",
      output: "Linear + softmax",
    },
    why: {
      attention: "Every token looks at all tokens of its sequence and takes a weighted mean of their values.",
      cross: "Every target token looks at the encoder output: this is how the decoder reads the source.",
      feed_forward: "Two linear layers with an activation between them change every token by itself.",
    },
    whyEmbedding: "Each token is an index; its row in the embedding table is the vector that the model computes with.",
    whyPositions: "Attention does not know the order of tokens, so a vector that depends on the position is added.",
    whyAddNorm: "The result is added to the input of the sublayer and normalised, so that deep stacks can be trained.",
    whyAdd: "The result is added to the residual stream; this model normalises the input of every sublayer instead.",
    layerSize: ({ heads, width, hidden }) => `${heads} heads · ${width} → ${hidden} → ${width}`,
    tokenStep: (position) => `token ${position}`,
    layerStep: (position) => `block ${position}`,
    moreTokens: (count) => `… ${count} more`,
    patchCount: (count) => `${count} tokens`,
    outputHint: (vocabulary) => `Logit → probability, of ${vocabulary} tokens in the vocabulary.`,
    examplesLabel: "Examples:",
    examples: { apple: "Apple", blocks: "Blocks", night: "Night" },
  },
  zh: {
    overviewTitle: "整个模型",
    overviewHint: "从最上方的源句词嵌入，一直看到最下方预测出的词元。编码器只运行一次，把每个源词元变成带有上下文信息的向量。"
      + "解码器每生成一个词元运行一次：读入已生成的词元，关注编码器的输出，最后一个向量换算成下一个词元的概率。",
    overviewParallel: "从最上方的源句词嵌入，一直看到最下方预测出的词元。此模型并行预测所有词元：第一次迭代时每个位置都是 MASK，之后只有需要重新预测的位置才是。图中是最后一次迭代。",
    overviewImage: "图像切成图块，每个图块变成一个向量，相当于文本里的词元。每一层里，图块之间互相关注；最后一层的向量取平均（或取类别词元），由此得出类别。",
    overviewPair: "同一个编码器用同一组权重读取两个视图。解码器在第一视图的向量上继续计算，通过交叉注意力到第二视图里寻找对应的图块。",
    overviewLegend: "色条：每行一个词元，显示前 24 个特征，蓝色为正，橙色为负。方图：各头平均的注意力权重，行为查询。点击某一块，打开对应的栏目。",
    stacks: { encoder: "编码器", decoder: "解码器", first: "编码器：第一视图", second: "编码器：第二视图" },
    blocks: {
      embedding: "词嵌入",
      patches: "图块嵌入",
      positions: "+ 位置编码",
      norm: "LayerNorm",
      attention: "自注意力",
      masked: "自注意力（解码器）",
      cross: "交叉注意力",
      feed_forward: "前馈网络",
      addNorm: "残差与归一化",
      add: "残差相加",
      output: "线性层 + softmax",
    },
    why: {
      attention: "每个词元查看序列中的所有词元，按权重对它们的值取加权平均。",
      cross: "每个目标词元查看编码器的输出，解码器由此读取源句。",
      feed_forward: "两个线性层，中间有激活函数，对每个词元单独变换。",
    },
    whyEmbedding: "词元只是一个编号；它在嵌入表中的那一行，就是模型用来计算的向量。",
    whyPositions: "注意力本身不知道词元的顺序，所以要加上一个随位置变化的向量。",
    whyAddNorm: "结果与子层的输入相加，再做归一化，层数多时才容易训练。",
    whyAdd: "结果加到残差流上；此模型改为在每个子层的输入处做归一化。",
    layerSize: ({ heads, width, hidden }) => `${heads} 个头 · ${width} → ${hidden} → ${width}`,
    tokenStep: (position) => `词元 ${position}`,
    layerStep: (position) => `第 ${position} 块`,
    moreTokens: (count) => `……另有 ${count} 个`,
    patchCount: (count) => `${count} 个词元`,
    outputHint: (vocabulary) => `logit → 概率，词表共 ${vocabulary} 个词元。`,
    examplesLabel: "示例：",
    examples: { apple: "苹果", blocks: "积木", night: "夜景" },
  },
};
