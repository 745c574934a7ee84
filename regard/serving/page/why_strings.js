// Strings of the section "why", and of the bias of attention scores in the section "change".

import { explanationStringsFor } from "./explanation_strings.js";

export const STRINGS = {
  en: {
    ...explanationStringsFor("en"),
    whyChoose: "Choose a word of the translation",
    whyChooseHint: "Click a word. Attention shows where a model looks; this section asks what decided the word.",
    whyNot: "Why not",
    whyNotHint: "another word, such as 爱",
    whyAgainst: "Another sentence",
    whyAgainstHint: "with as many tokens, such as “I buy apples”",
    whyAsk: "Explain",
    whyNAT: "A non-autoregressive model predicts all words in parallel, so no word follows from a prefix. Select an autoregressive model.",
    biasTitle: "Attention to a source token",
    biasHint: "Choose a token and raise or lower its cross-attention scores, in every layer and head, before the softmax. "
      + "−10 hides the token from the decoder; it still influences its neighbours in the encoder.",
    whyNoAgainst: "Enter another sentence above to see which states carry the difference between the two.",
  },
  zh: {
    ...explanationStringsFor("zh"),
    whyChoose: "选择译文里的一个词",
    whyChooseHint: "点击一个词。注意力说明模型看了哪里，这一节问的是什么决定了这个词。",
    whyNot: "为什么不是",
    whyNotHint: "另一个词，例如：爱",
    whyAgainst: "另一个句子",
    whyAgainstHint: "词元数相同，例如：I buy apples",
    whyAsk: "解释",
    whyNAT: "非自回归模型并行预测所有的词，没有可以解释的前文。请选择自回归模型。",
    biasTitle: "对某个源词元的注意力",
    biasHint: "选一个词元，在 softmax 之前调高或调低它的交叉注意力分数（所有层、所有头）。−10 相当于不让解码器看到它；它在编码器里仍会影响相邻的词元。",
    whyNoAgainst: "在上方输入另一个句子，看两句的差别来自哪些状态。",
  },
};
