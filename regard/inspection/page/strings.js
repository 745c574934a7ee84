// What the page says, in English and in Chinese.

const WORDS = {
  en: {
    translation: "Translation",
    pointAtToken: "Point at a token to see where it comes from.",
    attention: "Attention",
    encoder: "Encoder",
    encoderHint: "the source looks at itself",
    decoder: "Decoder",
    decoderHint: "each token to be written looks at what is written",
    cross: "From target to source",
    crossHint: "each token to be written looks at the source",
    layer: "layer",
    head: "head",
    mean: "mean",
    bits: "bits wide",
    away: "tokens away",
    looks: "looks at",
    lookedAt: "is looked at by",
    rowsAre: "rows look, columns are looked at",
    zoomIn: "larger",
    zoomOut: "smaller",
    theme: "light or dark",
    language: "中文",
    probability: "probability",
  },
  zh: {
    translation: "翻译",
    pointAtToken: "指向一个词元，看看它来自哪里。",
    attention: "注意力",
    encoder: "编码器",
    encoderHint: "原文看自身",
    decoder: "解码器",
    decoderHint: "要写的词元看已写的词元",
    cross: "从译文到原文",
    crossHint: "要写的词元看原文",
    layer: "层",
    head: "头",
    mean: "平均",
    bits: "比特宽",
    away: "个词元远",
    looks: "看向",
    lookedAt: "被这些看到：",
    rowsAre: "行是看的词元，列是被看的词元",
    zoomIn: "放大",
    zoomOut: "缩小",
    theme: "明暗",
    language: "English",
    probability: "概率",
  },
};

/** The words of a language; English where it is none of ours. */
export function stringsFor(language) {
  return WORDS[language] ?? WORDS.en;
}

/** The language to begin with: that of the browser, if it is ours. */
export function browserLanguage() {
  return navigator.language.startsWith("zh") ? "zh" : "en";
}
