"""Nouns in both languages and how they are counted."""

from dataclasses import dataclass

from ..english import form_plural


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun with its Chinese measure word and, if English needs one too, an English one (`portion`).

    A noun without a portion is countable (three books). A noun with a portion is a mass noun (a cup of tea) or, if
    `pair` is set, a plural that denotes one thing (a pair of shoes).
    """

    english: str
    chinese: str
    measure: str
    portion: str = ""
    pair: bool = False

    @property
    def plural(self) -> str:
        """The generic English form: apples, tea, shoes."""
        return self.english if self.portion else form_plural(self.english)

    @property
    def plural_only(self) -> bool:
        """Whether the English noun is always plural: the shoes are, the noodles are."""
        return bool(self.portion) and self.english.endswith("s")


def _pair(english: str, chinese: str, measure: str) -> Noun:
    return Noun(english, chinese, measure, portion="pair", pair=True)


NOUNS: dict[str, tuple[Noun, ...]] = {
    "fruit": (
        Noun("apple", "苹果", "个"),
        Noun("banana", "香蕉", "根"),
        Noun("orange", "橙子", "个"),
        Noun("pear", "梨", "个"),
        Noun("peach", "桃子", "个"),
        Noun("strawberry", "草莓", "颗"),
    ),
    "vegetable": (
        Noun("tomato", "西红柿", "个"),
        Noun("potato", "土豆", "个"),
        Noun("carrot", "胡萝卜", "根"),
        Noun("egg", "鸡蛋", "个"),
    ),
    "dish": (
        Noun("cake", "蛋糕", "块", portion="piece"),
        Noun("bread", "面包", "块", portion="piece"),
        Noun("chocolate", "巧克力", "块", portion="piece"),
        Noun("cheese", "奶酪", "块", portion="piece"),
        Noun("meat", "肉", "块", portion="piece"),
        Noun("rice", "米饭", "碗", portion="bowl"),
        Noun("noodles", "面条", "碗", portion="bowl"),
        Noun("dumpling", "饺子", "个"),
        Noun("sandwich", "三明治", "个"),
        Noun("hamburger", "汉堡", "个"),
    ),
    "drink": (
        Noun("tea", "茶", "杯", portion="cup"),
        Noun("coffee", "咖啡", "杯", portion="cup"),
        Noun("milk", "牛奶", "杯", portion="glass"),
        Noun("juice", "果汁", "杯", portion="glass"),
        Noun("water", "水", "瓶", portion="bottle"),
        Noun("beer", "啤酒", "瓶", portion="bottle"),
    ),
    "reading": (
        Noun("book", "书", "本"),
        Noun("novel", "小说", "本"),
        Noun("magazine", "杂志", "本"),
        Noun("newspaper", "报纸", "份"),
    ),
    "message": (
        Noun("letter", "信", "封"),
        Noun("email", "电子邮件", "封"),
    ),
    "picture": (
        Noun("photo", "照片", "张"),
        Noun("map", "地图", "张"),
    ),
    "story": (Noun("story", "故事", "个"),),
    "song": (Noun("song", "歌", "首"),),
    "movie": (Noun("movie", "电影", "部"),),
    "clothes": (
        Noun("shirt", "衬衫", "件"),
        Noun("coat", "大衣", "件"),
        Noun("sweater", "毛衣", "件"),
        Noun("jacket", "夹克", "件"),
        _pair("trousers", "裤子", "条"),
        _pair("shoes", "鞋", "双"),
        _pair("socks", "袜子", "双"),
    ),
    "accessory": (
        Noun("hat", "帽子", "顶"),
        Noun("watch", "手表", "块"),
        Noun("scarf", "围巾", "条"),
        _pair("glasses", "眼镜", "副"),
        _pair("gloves", "手套", "副"),
    ),
    "furniture": (
        Noun("table", "桌子", "张"),
        Noun("chair", "椅子", "把"),
        Noun("bed", "床", "张"),
        Noun("sofa", "沙发", "张"),
    ),
    "switched": (
        Noun("lamp", "灯", "盏"),
        Noun("television", "电视", "台"),
        Noun("radio", "收音机", "台"),
    ),
    "device": (
        Noun("computer", "电脑", "台"),
        Noun("phone", "手机", "部"),
        Noun("camera", "相机", "台"),
    ),
    "instrument": (
        Noun("piano", "钢琴", "架"),
        Noun("guitar", "吉他", "把"),
    ),
    "bicycle": (Noun("bicycle", "自行车", "辆"),),
    "motor": (
        Noun("car", "汽车", "辆"),
        Noun("truck", "卡车", "辆"),
    ),
    "house": (Noun("house", "房子", "座"),),
    "valuable": (
        Noun("key", "钥匙", "把"),
        Noun("wallet", "钱包", "个"),
        Noun("passport", "护照", "本"),
        Noun("ticket", "票", "张"),
    ),
    "writing": (
        Noun("pen", "钢笔", "支"),
        Noun("pencil", "铅笔", "支"),
    ),
    "umbrella": (Noun("umbrella", "雨伞", "把"),),
    "bag": (Noun("bag", "包", "个"),),
    "box": (Noun("box", "盒子", "个"),),
    "knife": (Noun("knife", "刀", "把"),),
    "present": (
        Noun("gift", "礼物", "份"),
        Noun("toy", "玩具", "个"),
    ),
    "dishes": (
        Noun("cup", "杯子", "个"),
        Noun("plate", "盘子", "个"),
        Noun("bowl", "碗", "个"),
        Noun("bottle", "瓶子", "个"),
    ),
    "opening": (
        Noun("door", "门", "扇"),
        Noun("window", "窗户", "扇"),
    ),
    "flower": (Noun("flower", "花", "朵"),),
    "tree": (Noun("tree", "树", "棵"),),
    "pet": (
        Noun("cat", "猫", "只"),
        Noun("dog", "狗", "只"),
        Noun("rabbit", "兔子", "只"),
        Noun("bird", "鸟", "只"),
    ),
    "farm": (
        Noun("horse", "马", "匹"),
        Noun("cow", "牛", "头"),
        Noun("pig", "猪", "头"),
        Noun("duck", "鸭子", "只"),
    ),
    "zoo": (
        Noun("monkey", "猴子", "只"),
        Noun("panda", "熊猫", "只"),
        Noun("tiger", "老虎", "只"),
        Noun("elephant", "大象", "头"),
    ),
    "fish": (Noun("fish", "鱼", "条"),),
}

BY_NAME = {noun.english: noun for nouns in NOUNS.values() for noun in nouns}


def list_nouns(kinds: str) -> tuple[Noun, ...]:
    """Return the nouns of the given kinds or names, which are separated by spaces."""
    found: list[Noun] = []
    for kind in kinds.split():
        found.extend(NOUNS[kind] if kind in NOUNS else (BY_NAME[kind],))
    return tuple(dict.fromkeys(found))


# Things of which people may have, buy or see up to ten.
PLENTIFUL = frozenset(
    list_nouns("fruit vegetable reading message writing flower tree dishes picture ticket chair fish dumpling")
)
# Things that are also used in the plural.
SEVERAL = PLENTIFUL | frozenset(
    list_nouns("pet farm zoo shirt jacket coat hat key present bag bicycle car umbrella window story movie song")
    + list_nouns("dumpling sandwich hamburger")
)
# Things that may belong to a household.
SHARED = frozenset(list_nouns("house motor furniture switched pet farm tree instrument dishes bicycle knife"))
FOOD = frozenset(list_nouns("fruit vegetable dish drink"))
