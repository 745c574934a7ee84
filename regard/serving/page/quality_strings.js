// Strings of confidences and flags.

export const STRINGS = {
  en: {
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
