// Texts of explanations in English and Chinese.

const EXPLANATION_STRINGS = {
  en: {
    whyTitle: "Why this word",
    whyQuestion: (word, contrast) => (contrast === null ? `Why ${word}?` : `Why ${word}, not ${contrast}?`),
    whyScore: (word, contrast) => (contrast === null ? `log p(${word})` : `log p(${word}) − log p(${contrast})`),
    whySum: (name, score, baseline, error) =>
      `${name} = ${score}; without source and prefix ${baseline}. The scores below sum to the difference (error ${error}).`,
    whyHint: "Blue words speak for the word, orange ones against it. Integrated gradients follow the score from padding "
      + "tokens to the real words; occlusion replaces one word at a time as a check.",
    whySource: "Source",
    whyPrefix: "Translated so far",
    whyWord: "Word",
    whyContribution: "Contribution",
    whyOcclusion: "Occlusion",
    whyNothing: "Nothing has been translated before this word.",
    nextTitle: "Next tokens",
    nextHint: "What the model considers here, with probabilities.",
    lensTitle: "Predictions after every layer",
    lensHint: "The token that the model would predict if it ended after this layer. The lowest row is the embedding of the "
      + "token that was read before. Early layers were not trained to be read.",
    lensCell: (token, probability, chosen, rank) => `${token} ${probability} · this token: ${chosen}, rank ${rank}`,
    encoderLensTitle: "Encoder states, read as tokens",
    encoderLensHint: "Source and target share one vocabulary, so the output layer can read the encoder as well. "
      + "It finds the word itself; the context changes the rest of the vector.",
    layerNumber: (layer) => (layer === 0 ? "embedding" : `after layer ${layer - 1}`),
    headColumn: "Head",
    headEffect: "Fall of the score",
    headsRanked: "Heads by ablation",
    headsRankedHint: "How much the score falls when the output of one head is set to zero. Negative: the head speaks "
      + "against the word.",
    patchingTitle: "What carries the difference to another sentence",
    patchingHint: "The model reads the other sentence, and one state at a time is replaced by that of this sentence. "
      + "100% restores the whole difference.",
    patchingScores: (word, contrast, score, other) =>
      `log p(${word}) − log p(${contrast}): ${score} for this sentence, ${other} for the other one.`,
    patchingEncoder: "Encoder",
    patchingDecoder: "Decoder",
  },
  zh: {
    whyTitle: "为什么是这个词",
    whyQuestion: (word, contrast) => (contrast === null ? `为什么是“${word}”？` : `为什么是“${word}”，而不是“${contrast}”？`),
    whyScore: (word, contrast) => (contrast === null ? `log p(${word})` : `log p(${word}) − log p(${contrast})`),
    whySum: (name, score, baseline, error) =>
      `${name} = ${score}；去掉原文和前文时为 ${baseline}。下面各项之和等于两者之差（误差 ${error}）。`,
    whyHint: "蓝色的词支持这个选择，橙色的词反对。积分梯度把填充词元逐渐换成真实的词，把得分一路上的变化分给每个词；遮挡每次只换掉一个词，用来核对。",
    whySource: "原文",
    whyPrefix: "已译出的前文",
    whyWord: "词",
    whyContribution: "贡献",
    whyOcclusion: "遮挡",
    whyNothing: "这个词之前还没有译文。",
    nextTitle: "下一个词元",
    nextHint: "模型在这里考虑的词元及其概率。",
    lensTitle: "每一层之后的预测",
    lensHint: "假如模型算到这一层就停，会预测哪个词元。最下面一行是上一个词元的嵌入。靠前的层在训练时并不要求能这样读。",
    lensCell: (token, probability, chosen, rank) => `${token} ${probability} · 本词元：${chosen}，第 ${rank} 名`,
    encoderLensTitle: "把编码器的状态读成词元",
    encoderLensHint: "原文和译文共用一个词表，所以输出层也能读编码器的状态。读出的是词本身，上下文改变的是向量的其余部分。",
    layerNumber: (layer) => (layer === 0 ? "嵌入" : `第 ${layer - 1} 层之后`),
    headColumn: "头",
    headEffect: "得分下降",
    headsRanked: "关掉哪个头影响最大",
    headsRankedHint: "把某个头的输出置零，得分下降多少。负值表示这个头反对这个词。",
    patchingTitle: "两句的差别来自哪些状态",
    patchingHint: "模型读另一个句子，每次把其中一个状态换成本句的状态。100% 表示差别完全恢复。",
    patchingScores: (word, contrast, score, other) =>
      `log p(${word}) − log p(${contrast})：本句 ${score}，另一句 ${other}。`,
    patchingEncoder: "编码器",
    patchingDecoder: "解码器",
  },
};

/** Returns the texts of explanations in a language, English for unknown languages. */
export function explanationStringsFor(language) {
  return EXPLANATION_STRINGS[language] ?? EXPLANATION_STRINGS.en;
}
