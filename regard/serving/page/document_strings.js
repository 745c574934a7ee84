// Strings of the card that translates a document.

export const STRINGS = {
  en: {
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
  },
  zh: {
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
  },
};
