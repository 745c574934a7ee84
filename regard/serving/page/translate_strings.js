// Strings of the section "translate": the glossary, documents, confidences and flags.

export const STRINGS = {
  en: {
    glossary: "Prescribe the translation of terms",
    glossaryExample: "apple = 苹果",
    glossaryHint: "One term per line: the source term, = and its translation. Inflected forms of the term are found too.",
    glossaryInvalid: (line) => `Line ${line} has no translation: write the source term, = and its translation.`,
    termKept: "kept",
    termLost: "missing",

    scriptOf: { source: "Script of the text", target: "Script of the translation" },
    scripts: { "zh-Hans": "Simplified Chinese", "zh-Hant": "Traditional Chinese" },

    documentTitle: "Document",
    dropDocument: "Drop a document here, or click to choose one",
    documentHint: "Text, Markdown, HTML, subtitles, gettext, XLIFF, TMX, Word, OpenDocument, JSON and CSV. Only text is translated; markup, placeholders and times stay.",
    csvColumn: "Column to translate",
    documentProgress: "Progress of the document",
    documentSent: "Sending the document…",
    documentSegments: (done, total) => `${done} of ${total} segments`,
    documentDownload: (name) => `Download the translation of ${name}`,
    documentDone: (sentences, placed) => `${sentences} sentences translated.${placed ? ` Placeholders were put back by the alignment in ${placed} segments; check them.` : ""}`,
    documentUntranslated: (count) => `${count} texts are not translated`,

    confidence: (percent) => `Confidence ${percent}%`,
    tokenConfidence: (token, percent) => `${token}: ${percent}%`,
    notCalibrated: "The confidence of this model is not calibrated; see regard calibrate.",
    confidenceHint: "Probability that the sentence, or the word part, agrees with a reference. Shaded parts are uncertain; "
      + "dotted lines mark those below 50%.",
    flagsLabel: "Suspected faults",
    flags: {
      repetition: (detail) => `Repetition: ${detail}`,
      truncation: () => "The translation may be cut off: the maximum length was reached.",
      "missing-number": (detail) => `Number missing: ${detail}`,
      "missing-name": (detail) => `Name missing: ${detail}`,
      "source-language": (detail) => (detail === "und"
        ? "The text is not in the source language of the model."
        : `The text is in another language than the source language of the model: ${detail}`),
    },
  },
  zh: {
    glossary: "指定术语的译法",
    glossaryExample: "apple = 苹果",
    glossaryHint: "每行一条：源语言术语、=、译法。术语的屈折变化形式也会匹配。",
    glossaryInvalid: (line) => `第 ${line} 行缺少译法，应写成：源语言术语 = 译法。`,
    termKept: "已采用",
    termLost: "未采用",

    scriptOf: { source: "原文（简／繁）", target: "译文（简／繁）" },
    scripts: { "zh-Hans": "简体中文", "zh-Hant": "繁体中文" },

    documentTitle: "文档",
    dropDocument: "将文档拖到此处，或点击选择",
    documentHint: "支持纯文本、Markdown、HTML、字幕、gettext、XLIFF、TMX、Word、OpenDocument、JSON 和 CSV。只翻译文字，标记、占位符和时间保持不变。",
    csvColumn: "要翻译的列",
    documentProgress: "文档翻译进度",
    documentSent: "正在上传文档…",
    documentSegments: (done, total) => `已完成 ${done} / ${total} 段`,
    documentDownload: (name) => `下载 ${name} 的译文`,
    documentDone: (sentences, placed) => `已翻译 ${sentences} 个句子。${placed ? `有 ${placed} 段的占位符由对齐结果放回，请检查。` : ""}`,
    documentUntranslated: (count) => `${count} 处未翻译`,

    confidence: (percent) => `置信度 ${percent}%`,
    tokenConfidence: (token, percent) => `${token}：${percent}%`,
    notCalibrated: "此模型的置信度尚未校准，参见 regard calibrate。",
    confidenceHint: "句子或词元与参考译文一致的概率。有底色的部分把握不大，低于 50% 的加点线。",
    flagsLabel: "可疑的错误",
    flags: {
      repetition: (detail) => `重复：${detail}`,
      truncation: () => "已达到长度上限，译文可能不完整。",
      "missing-number": (detail) => `漏译数字：${detail}`,
      "missing-name": (detail) => `漏译名称：${detail}`,
      "source-language": (detail) => (detail === "und"
        ? "原文不是模型的源语言。"
        : `原文不是模型的源语言，而是 ${detail}。`),
    },
  },
};
