"""Adjectives with the nouns that they can describe."""

from dataclasses import dataclass
from functools import cached_property

from .nouns import NOUNS, Noun, list_nouns


@dataclass(frozen=True)
class Adjective:
    """An adjective.

    `before_noun` is the Chinese form before a noun, empty if it is not used there. Adjectives without a comparative are
    not used in comparisons.
    """

    english: str
    chinese: str
    fits: str = ""
    before_noun: str = ""
    comparative: str = ""

    @property
    def denial(self) -> str:
        """The Chinese word for "not": 没 for adjectives that begin with 有."""
        return "没" if self.chinese.startswith("有") else "不"

    @property
    def superlative(self) -> str:
        long = self.comparative.startswith("more ")
        return self.comparative.replace("more ", "most ") if long else self.comparative[:-2] + "est"

    @cached_property
    def nouns(self) -> tuple[Noun, ...]:
        return list_nouns(self.fits)


_WARES = "reading clothes accessory device bicycle umbrella bag toy furniture instrument motor"
_PAINTED = "clothes hat scarf gloves motor bicycle umbrella bag box dishes chair sofa writing"

# Adjectives of one syllable precede the noun directly; longer ones need 的.
QUALITIES = (
    Adjective("big", "大", "furniture house box bag fruit dishes pet farm monkey tiger tree fish", "大", "bigger"),
    Adjective("small", "小", "furniture house box bag fruit dishes pet tree fish knife", "小", "smaller"),
    Adjective("new", "新", f"{_WARES} switched dishes knife house movie song", "新"),
    Adjective("old", "旧", f"{_WARES} switched dishes knife house photo map", "旧"),
    Adjective("expensive", "贵", f"{_WARES} house fruit dish switched", "", comparative="more expensive"),
    Adjective("cheap", "便宜", f"{_WARES} house switched ticket dishes", "便宜 的", "cheaper"),
    Adjective(
        "beautiful",
        "漂亮",
        "clothes hat scarf watch house flower bird horse photo dishes umbrella",
        "漂亮 的",
        "more beautiful",
    ),
    Adjective("interesting", "有意思", "book novel magazine story movie toy", "有意思 的", "more interesting"),
    Adjective("boring", "无聊", "book novel magazine story movie", "", "more boring"),
    Adjective("long", "长", "jacket trousers scarf story movie novel letter email", "", "longer"),
    Adjective("heavy", "重", "box bag furniture instrument computer bicycle", "", "heavier"),
    Adjective("light", "轻", "box bag chair computer camera phone coat shoes", "", "lighter"),
    Adjective("clean", "干净", "dishes clothes motor bed sofa knife window", "", "cleaner"),
    Adjective("dirty", "脏", "dishes clothes motor bed sofa knife window bag", "", "dirtier"),
    Adjective("fast", "快", "motor bicycle computer horse", "", "faster"),
    Adjective("slow", "慢", "motor bicycle computer", "", "slower"),
    Adjective("useful", "有用", "book map device umbrella bag knife bicycle", "有用 的", "more useful"),
    Adjective("comfortable", "舒服", "chair bed sofa clothes hat gloves motor", "舒服 的", "more comfortable"),
    Adjective("delicious", "好吃", "fruit dish", "", "more delicious"),
    Adjective("sweet", "甜", "apple orange pear peach strawberry cake chocolate"),
    Adjective("fresh", "新鲜", "fruit vegetable fish", "新鲜 的"),
    Adjective("cute", "可爱", "pet panda monkey toy", "可爱 的", "cuter"),
    Adjective("important", "重要", "message book key passport map", "重要 的", "more important"),
)
COLORS = (
    Adjective("red", "红色", f"{_PAINTED} flower", "红色 的"),
    Adjective("blue", "蓝色", f"{_PAINTED} flower", "蓝色 的"),
    Adjective("green", "绿色", "clothes hat scarf gloves motor bicycle umbrella bag box dishes chair sofa", "绿色 的"),
    Adjective("yellow", "黄色", f"{_PAINTED} flower", "黄色 的"),
    Adjective("white", "白色", f"{_PAINTED} flower cat dog rabbit horse", "白色 的"),
    Adjective("black", "黑色", f"{_PAINTED} cat dog horse bird", "黑色 的"),
)
# Adjectives that can be used with "too".
EXCESSES = ("big", "small", "old", "expensive", "long", "heavy", "dirty", "slow", "sweet")

# Permanent traits of people, which can be compared.
TRAITS = (
    Adjective("tall", "高", comparative="taller"),
    Adjective("short", "矮", comparative="shorter"),
    Adjective("young", "年轻", comparative="younger"),
    Adjective("smart", "聪明", comparative="smarter"),
    Adjective("strong", "强壮", comparative="stronger"),
    Adjective("thin", "瘦", comparative="thinner"),
    Adjective("brave", "勇敢", comparative="braver"),
    Adjective("lazy", "懒", comparative="lazier"),
    Adjective("friendly", "友好", comparative="friendlier"),
    Adjective("kind", "善良", comparative="kinder"),
    Adjective("polite", "有礼貌", comparative="more polite"),
    Adjective("famous", "出名", comparative="more famous"),
)
# Temporary states of people.
STATES = (
    Adjective("busy", "忙"),
    Adjective("tired", "累"),
    Adjective("happy", "高兴"),
    Adjective("sad", "难过"),
    Adjective("hungry", "饿"),
    Adjective("thirsty", "渴"),
    Adjective("angry", "生气"),
    Adjective("nervous", "紧张"),
)
SUBJECTS_OF_STUDY = (
    Noun("Chinese", "中文", ""),
    Noun("English", "英语", ""),
    Noun("French", "法语", ""),
    Noun("Japanese", "日语", ""),
    Noun("math", "数学", ""),
    Noun("history", "历史", ""),
)
DIFFICULTIES = (
    Adjective("difficult", "难", comparative="more difficult"),
    Adjective("easy", "容易", comparative="easier"),
    Adjective("interesting", "有意思", comparative="more interesting"),
    Adjective("important", "重要", comparative="more important"),
    Adjective("useful", "有用", comparative="more useful"),
)
WEATHER = (
    Adjective("hot", "热"),
    Adjective("cold", "冷"),
    Adjective("warm", "暖和"),
    Adjective("cool", "凉快"),
)

ATTRIBUTES: dict[str, tuple[Adjective, ...]] = {
    noun.english: tuple(
        adjective for adjective in (*QUALITIES, *COLORS) if adjective.before_noun and noun in adjective.nouns
    )
    for nouns in NOUNS.values()
    for noun in nouns
}
PREDICATES: dict[str, tuple[Adjective, ...]] = {
    noun.english: tuple(adjective for adjective in QUALITIES if noun in adjective.nouns)
    for nouns in NOUNS.values()
    for noun in nouns
}
