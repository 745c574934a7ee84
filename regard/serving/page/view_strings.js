// Strings of links to views and of downloads.

export const STRINGS = {
  en: {
    sentenceField: "Sentence",
    hypothesis: "Hypothesis",
    stepField: "Step",
    ownImage: "The link was made with an image that is not part of it. Select an image.",
    copyLink: "Copy link",
    linkCopied: "Link copied",
    linkTitle: "Address of this view",
    unknownSection: (id) => `The link names the section “${id}”, which this page does not have.`,
    unknownModel: (name, shown) => `The link names the model “${name}”, which this server does not serve; ${shown} is shown.`,
    invalidValue: (key, value) => `The link states ${key} = “${value}”, which is not a valid value; the default is used.`,
    outOfRange: (label, value, last) => `The link states ${label.toLowerCase()} ${value}, but there are only 0 to ${last}; ${last} is shown.`,
    unknownName: (name) => `The link names “${name}”, which this model does not have.`,
  },
  zh: {
    sentenceField: "句子",
    hypothesis: "候选",
    stepField: "步骤",
    ownImage: "链接不包含当时所用的图像，请自行选择图像。",
    copyLink: "复制链接",
    linkCopied: "已复制链接",
    linkTitle: "当前视图的网址",
    unknownSection: (id) => `链接里的栏目“${id}”不存在。`,
    unknownModel: (name, shown) => `链接里的模型“${name}”不在此服务器上，当前显示 ${shown}。`,
    invalidValue: (key, value) => `链接里的 ${key} = “${value}”无效，已改用默认值。`,
    outOfRange: (label, value, last) => `链接里的${label} ${value} 超出范围（0 至 ${last}），当前显示 ${last}。`,
    unknownName: (name) => `链接里的“${name}”在此模型中不存在。`,
  },
};
