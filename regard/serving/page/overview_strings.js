// Strings of the section "overview".

export const STRINGS = {
  en: {
    overviewTitle: "The whole model",
  },
  zh: {
    overviewTitle: "整个模型",
  },
};
