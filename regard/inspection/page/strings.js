// Texts of the page in English and Chinese.

import { recall, remember } from "./storage.js";

const STRINGS = {
  en: {
    translation: "Translation",
    pointAtToken: "Point at a token to see its alignment.",
    attention: "Attention",
    encoder: "Encoder self-attention",
    encoderHint: "the source attends to itself",
    decoder: "Decoder self-attention",
    decoderHint: "each predicted token attends to the decoder input",
    cross: "Cross-attention",
    crossHint: "each predicted token attends to the source",
    layer: (number) => `layer ${number}`,
    head: "head",
    mean: "mean",
    entropy: (bits) => `entropy ${bits} bits`,
    distance: (tokens) => `mean distance ${tokens} tokens`,
    quote: (token) => token,
    attendsTo: "attends to",
    attendedToBy: "is attended to by",
    axes: "rows are queries, columns are keys",
    zoomIn: "zoom in",
    zoomOut: "zoom out",
    theme: "light or dark theme",
    language: "中文",
    probability: "probability",
    pointHint: "Point at a token or a cell, or use the arrow keys. A click pins it, Escape releases it.",
    matrixLabel: "Attention matrix; move with the arrow keys",
    linesLabel: "Attention as lines; move with the arrow keys",
    weightsTable: "As a table",
    queryColumn: "query",
    largestWeights: "largest values",
  },
  zh: {
    translation: "翻译",
    pointAtToken: "指向一个词元，查看它与另一侧词元的对齐。",
    attention: "注意力",
    encoder: "编码器自注意力",
    encoderHint: "源句词元之间的注意力",
    decoder: "解码器自注意力",
    decoderHint: "每个预测词元对解码器输入的注意力",
    cross: "交叉注意力",
    crossHint: "每个预测词元对源句的注意力",
    layer: (number) => `第 ${number} 层`,
    head: "头",
    mean: "平均",
    entropy: (bits) => `熵 ${bits} 比特`,
    distance: (tokens) => `平均距离 ${tokens} 个词元`,
    quote: (token) => `“${token}”`,
    attendsTo: "关注",
    attendedToBy: "受到以下词元关注：",
    axes: "行为查询，列为键",
    zoomIn: "放大",
    zoomOut: "缩小",
    theme: "切换浅色或深色主题",
    language: "English",
    probability: "概率",
    pointHint: "指向词元或单元格，或用方向键移动；点击可固定，按 Esc 取消固定。",
    matrixLabel: "注意力矩阵，可用方向键移动",
    linesLabel: "注意力连线，可用方向键移动",
    weightsTable: "以表格显示",
    queryColumn: "查询",
    largestWeights: "最大的几个值",
  },
};

/** Returns the texts of a language, English for unknown languages. */
export function stringsFor(language) {
  return STRINGS[language] ?? STRINGS.en;
}

/** Returns the language that the user chose before, or that of the browser; English if the page does not support it. */
export function initialLanguage() {
  const stored = recall("language");
  if (Object.hasOwn(STRINGS, stored)) return stored;
  return navigator.language.startsWith("zh") ? "zh" : "en";
}

/** Returns the other language of the page, and keeps it as the choice of the user. */
export function switchLanguage(language) {
  const other = language === "zh" ? "en" : "zh";
  remember("language", other);
  return other;
}
