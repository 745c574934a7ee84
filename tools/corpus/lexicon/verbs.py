"""Verbs with their possible objects and places."""

from dataclasses import dataclass
from functools import cached_property

from ..english import VerbForms, inflect
from .nouns import Noun, list_nouns
from .places import Place, list_places


@dataclass(frozen=True)
class Verb:
    """A verb in both languages.

    Attributes:
        objects: Kinds of nouns that can be the object.
        where: Places of the action.
        lasting: Whether the event may have happened years ago (I bought a house).
        momentary: Whether it cannot be planned or ongoing (I found a key).
        brief: Whether it is too short to be planned (I closed the door).
        creates: Whether the object does not exist before (I wrote two letters).
        particular: Whether the object is always definite (I heard this song).
        many: Whether there may be many objects.
        owned: Whether the object may belong to a person (I found your key).
    """

    english: str
    chinese: str
    objects: str = ""
    where: str = ""
    lasting: bool = False
    momentary: bool = False
    brief: bool = False
    creates: bool = False
    particular: bool = False
    many: bool = False
    owned: bool = False

    @cached_property
    def forms(self) -> VerbForms:
        return inflect(self.english)

    @cached_property
    def nouns(self) -> tuple[Noun, ...]:
        return list_nouns(self.objects)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        return list_places(self.where)

    @property
    def hides_past(self) -> bool:
        """Whether past and present are spelled alike, as in "I read"."""
        return self.forms.past == self.forms.base


_FOOD = "fruit vegetable dish fish"
_GOODS = "reading clothes accessory device bicycle umbrella bag present furniture instrument writing"
_LOSABLE = "valuable pet accessory umbrella phone pen"
_GIFTS = "reading clothes accessory device umbrella bag present writing flower dish fruit vegetable drink"

# Verbs with an object, for any tense and number of things.
TRANSITIVE = (
    Verb("eat", "吃", "fruit vegetable dish fish", "home restaurant kitchen office"),
    Verb("drink", "喝", "drink", "home restaurant kitchen office hotel"),
    Verb("read", "看", "reading message story", "home library park bedroom office classroom"),
    Verb("write", "写", "message story novel", "home library office bedroom", creates=True),
    Verb("watch", "看", "movie", "home cinema living-room"),
    Verb("buy", "买", f"{_FOOD} drink {_GOODS} car house flower", "shop supermarket market", lasting=True, many=True),
    Verb("order", "点", "dish drink", "restaurant hotel", creates=True),
    Verb("draw", "画", "pet farm zoo fish flower tree map", "home classroom school", many=True, creates=True),
    Verb("plant", "种", "flower tree", "garden park", lasting=True, many=True, creates=True),
    Verb("see", "看见", "farm pet bicycle motor", "park station", lasting=True, momentary=True, many=True),
    Verb("see", "看见", "zoo", "zoo", lasting=True, momentary=True),
    Verb("look for", "找", _LOSABLE, "home station park office", particular=True, owned=True),
    Verb("find", "找到", _LOSABLE, "home station park office", momentary=True, owned=True),
    Verb("borrow", "借", "reading umbrella bicycle camera pen guitar car", "library school office", lasting=True),
    Verb("use", "用", "device writing knife umbrella dishes map", "home office classroom kitchen", owned=True),
    Verb("bring", "带", "umbrella camera map passport present", owned=True),
    Verb("receive", "收到", "message present flower ticket", "home office", lasting=True, momentary=True, many=True),
    Verb("listen to", "听", "song", "home living-room bedroom", particular=True),
    Verb("wash", "洗", "dishes clothes car bicycle", "home", owned=True),
)

# The same verbs with the objects of habitual actions.
HABITUAL = (
    Verb("eat", "吃", "fruit vegetable dish fish", "home restaurant"),
    Verb("drink", "喝", "drink", "home restaurant office"),
    Verb("read", "看", "reading", "home library park bedroom"),
    Verb("write", "写", "message story", "home library office"),
    Verb("buy", "买", "fruit vegetable bread milk newspaper flower", "supermarket market"),
    Verb("watch", "看", "movie", "home cinema"),
    Verb("draw", "画", "pet flower tree", "home park"),
)

# Verbs that are used with 把 in Chinese: the object is definite, and the verb has a result.
DISPOSAL = (
    Verb("close", "关上", "opening box", brief=True),
    Verb("open", "打开", "opening box bottle", brief=True),
    Verb("turn on", "打开", "switched computer", brief=True),
    Verb("turn off", "关掉", "switched computer", brief=True),
    Verb("break", "打破", "dishes window", momentary=True),
    Verb("fix", "修好", "bicycle motor computer camera radio chair watch lamp"),
    Verb("sell", "卖掉", "bicycle motor house instrument camera"),
    Verb("lose", "弄丢", "valuable umbrella phone accessory", momentary=True, owned=True),
)

# Verbs whose object is a person.
MEETING = (
    Verb("see", "看见", where="station airport park supermarket cinema", lasting=True, momentary=True),
    Verb("meet", "遇见", where="station airport park supermarket library", lasting=True, momentary=True),
    Verb("help", "帮助", lasting=True),
    Verb("visit", "看望", lasting=True),
)
# Verbs with a person as object that can be planned or ongoing.
ATTENDING = MEETING[2:]
WAIT = Verb("wait for", "等", where="station airport school park")

# Actions for a person, who precedes the verb with 给 in Chinese.
GIVING = (
    Verb("buy", "买", _GIFTS, lasting=True),
    Verb("send", "寄", "letter present photo book", lasting=True),
    Verb("tell", "讲", "story"),
)
GIVE = Verb("give", "给", f"{_GIFTS} picture ticket", lasting=True)
SHOW = Verb("show", "看", "picture present letter")

# Verbs without an object.
GAMES = (
    Verb("play the piano", "弹 钢琴", where="home living-room classroom school"),
    Verb("play the guitar", "弹 吉他", where="home park bedroom beach"),
    Verb("play basketball", "打 篮球", where="school park gym"),
    Verb("play soccer", "踢 足球", where="school park"),
    Verb("play tennis", "打 网球", where="school park gym"),
)
ARTS = (
    Verb("swim", "游泳", where="beach gym"),
    Verb("sing", "唱歌", where="park home classroom living-room"),
    Verb("dance", "跳舞", where="park home gym living-room"),
)
AMUSEMENTS = (
    *ARTS,
    Verb("run", "跑步", where="park beach gym"),
    Verb("take a walk", "散步", where="park beach garden"),
    Verb("take photos", "拍照", where="park beach zoo garden"),
    Verb("watch television", "看 电视", where="home living-room bedroom hotel"),
    Verb("listen to music", "听 音乐", where="home bedroom living-room park"),
)
LEISURE = (*GAMES, *AMUSEMENTS)
CHAT = Verb("chat", "聊天")
LABORS = (
    Verb("work", "工作", where="home office hospital bank airport"),
    Verb("study", "学习", where="home library school classroom"),
    Verb("exercise", "锻炼", where="home park gym"),
    Verb("rest", "休息", where="home bedroom hotel"),
)
STUDIES = (
    Verb("study Chinese", "学习 中文", where="home library school"),
    Verb("study English", "学习 英语", where="home library school"),
    Verb("study French", "学习 法语", where="home library school"),
    Verb("study math", "学习 数学", where="home library school"),
    Verb("study history", "学习 历史", where="home library school"),
)
CLEANING = (
    Verb("clean the kitchen", "打扫 厨房"),
    Verb("clean the bedroom", "打扫 卧室"),
    Verb("clean the classroom", "打扫 教室"),
)
DUTIES = (*LABORS, *STUDIES, *CLEANING)
# Repeated lists increase the frequency of their verbs.
PASTIMES = (GAMES, AMUSEMENTS, AMUSEMENTS, AMUSEMENTS, LABORS, LABORS, STUDIES, CLEANING)
# Actions that imply a time of day, so that no other time is added.
NEEDS = (
    Verb("sleep", "睡觉", where="home bedroom hotel"),
    Verb("eat breakfast", "吃 早饭", where="home kitchen hotel"),
    Verb("eat lunch", "吃 午饭", where="home school office restaurant"),
    Verb("eat dinner", "吃 晚饭", where="home restaurant hotel"),
    Verb("cook lunch", "做 午饭", where="home kitchen"),
    Verb("cook dinner", "做 晚饭", where="home kitchen"),
)
# Verb, part of the day, its Chinese name, possible hours.
ROUTINES = (
    (Verb("get up", "起床"), "morning", "早上", ("six", "seven", "eight")),
    (NEEDS[1], "morning", "早上", ("seven", "eight", "nine")),
    (Verb("go to school", "去 学校"), "morning", "早上", ("seven", "eight")),
    (Verb("go to work", "去 上班"), "morning", "早上", ("seven", "eight", "nine")),
    (Verb("go home", "回家"), "afternoon", "下午", ("three", "four", "five", "six")),
    (Verb("exercise", "锻炼"), "afternoon", "下午", ("two", "three", "four", "five")),
    (NEEDS[3], "evening", "晚上", ("six", "seven", "eight")),
    (Verb("take a bath", "洗澡"), "evening", "晚上", ("eight", "nine", "ten")),
    (Verb("go to bed", "睡觉"), "evening", "晚上", ("nine", "ten")),
)
AT_HOME = tuple(verb for verb in (*LEISURE, *DUTIES) if "home" in verb.where)
# Learned skills, for which "can" is 会 instead of 能.
SKILLS = (
    *GAMES,
    *ARTS,
    Verb("cook", "做饭"),
    Verb("drive", "开车"),
    Verb("ride a bicycle", "骑 自行车"),
    Verb("ride a horse", "骑马"),
    Verb("speak Chinese", "说 中文"),
    Verb("speak English", "说 英语"),
    Verb("speak French", "说 法语"),
    Verb("speak Japanese", "说 日语"),
)
# Actions that can last for hours; the Chinese word takes the duration.
ENDURING = (
    Verb("work", "工作"),
    Verb("study", "学习"),
    Verb("rest", "休息"),
    Verb("sleep", "睡"),
    Verb("exercise", "锻炼"),
    Verb("wait", "等"),
)

GO = Verb("go", "去")
GO_ABROAD = Verb("go", "去", lasting=True)
COME_BACK = Verb("come back from", "回来")
CALL = Verb("call", "打")
# English, Chinese
BY_VEHICLE = (
    ("by train", "坐 火车"),
    ("by plane", "坐 飞机"),
    ("by bus", "坐 公共汽车"),
    ("by taxi", "坐 出租车"),
    ("by car", "开车"),
    ("by bicycle", "骑 自行车"),
)

_ANY_THING = "fruit vegetable dish drink pet farm zoo fish flower"
# Things of one sort, for "likes X and Y".
SORTS = tuple(map(list_nouns, ("fruit vegetable", "dish", "drink", "pet farm zoo")))
LIKE = (
    Verb("like", "喜欢", _ANY_THING),
    Verb("love", "喜欢", _ANY_THING),
    Verb("hate", "讨厌", "vegetable dish drink zoo"),
)
NEED = Verb("need", "需要", "umbrella device bag drink coat shoes gloves writing dishes furniture bicycle map ticket")
WANT = Verb("want", "想要", f"dish drink fruit {_GOODS} pet")
HAVE = Verb("have", "有", f"pet farm fish {_GOODS} motor house switched box knife picture ticket toy")
# Feelings for people: "love" is 爱 for a person and 喜欢 for a thing.
FEELING = (
    Verb("like", "喜欢"),
    Verb("love", "爱"),
    Verb("know", "认识"),
    Verb("miss", "想念"),
    Verb("trust", "相信"),
)
# "Wear" is 穿 for clothes and 戴 for accessories.
WEARING = (("穿", list_nouns("clothes")), ("戴", list_nouns("accessory")))
