// Strings of the glossary field.

export const STRINGS = {
  en: {
    glossary: "Glossary",
    glossaryExample: "apple = 苹果",
    glossaryHint: "One term per line: the source term, = and its translation. Inflected forms of the term are found too.",
    glossaryInvalid: (line) => `Line ${line} has no translation: write the source term, = and its translation.`,
    termKept: "kept",
    termLost: "missing",
  },
  zh: {
    glossary: "术语表",
    glossaryExample: "apple = 苹果",
    glossaryHint: "每行一条：源语言术语、=、译法。术语的屈折变化形式也会匹配。",
    glossaryInvalid: (line) => `第 ${line} 行缺少译法，应写成：源语言术语 = 译法。`,
    termKept: "已采用",
    termLost: "未采用",
  },
};
