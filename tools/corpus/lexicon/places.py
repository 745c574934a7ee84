"""Places where people go and act, and spots where things are."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A place with its English phrases for "at" and "to" and its Chinese names after 在 and 去."""

    name: str
    at: str
    to: str
    chinese: str
    destination: str


def _public(preposition: str, name: str, chinese: str) -> Place:
    return Place(name, f"{preposition} the {name}", f"to the {name}", chinese, chinese)


def _room(name: str, chinese: str) -> Place:
    return Place(name, f"in the {name}", f"to the {name}", f"{chinese} 里", chinese)


def _city(name: str, chinese: str) -> Place:
    return Place(name, f"in {name}", f"to {name}", chinese, chinese)


HOME = Place("home", "at home", "home", "家", "家")
SCHOOL = Place("school", "at school", "to school", "学校", "学校")
BUILDINGS = (
    SCHOOL,
    _public("in", "library", "图书馆"),
    _public("in", "park", "公园"),
    _public("at", "hospital", "医院"),
    _public("at", "shop", "商店"),
    _public("at", "supermarket", "超市"),
    _public("at", "market", "市场"),
    _public("at", "restaurant", "餐厅"),
    _public("at", "bank", "银行"),
    _public("at", "station", "车站"),
    _public("at", "airport", "机场"),
    _public("in", "museum", "博物馆"),
    _public("at", "cinema", "电影院"),
    _public("at", "zoo", "动物园"),
    _public("at", "hotel", "酒店"),
    _public("in", "office", "办公室"),
    _public("at", "beach", "海边"),
    _public("at", "gym", "健身房"),
)
ROOMS = (
    _room("kitchen", "厨房"),
    _room("bedroom", "卧室"),
    _room("living room", "客厅"),
    _room("garden", "花园"),
    _room("classroom", "教室"),
)
CITIES = (
    _city("Beijing", "北京"),
    _city("Shanghai", "上海"),
    _city("London", "伦敦"),
    _city("Paris", "巴黎"),
    _city("Tokyo", "东京"),
    _city("New York", "纽约"),
)
COUNTRIES = (
    _city("China", "中国"),
    _city("Japan", "日本"),
    _city("America", "美国"),
    _city("England", "英国"),
    _city("France", "法国"),
)
BY_NAME = {place.name.replace(" ", "-"): place for place in (HOME, *BUILDINGS, *ROOMS, *CITIES, *COUNTRIES)}


def list_places(names: str) -> tuple[Place, ...]:
    """Return the places with the given names, which are separated by spaces."""
    return tuple(BY_NAME[name] for name in names.split())


@dataclass(frozen=True, slots=True)
class Spot:
    """A spot in a room, such as "on the table"."""

    english: str
    chinese: str


def _spots(preposition: str, locative: str, *things: tuple[str, str]) -> tuple[Spot, ...]:
    return tuple(Spot(f"{preposition} the {english}", f"{chinese} {locative}") for english, chinese in things)


_TOPS = (("table", "桌子"), ("chair", "椅子"), ("bed", "床"), ("sofa", "沙发"))
_CASES = (("box", "盒子"), ("bag", "包"), ("drawer", "抽屉"))
_LANDMARKS = (("door", "门"), ("window", "窗户"), ("tree", "树"), ("house", "房子"))

ON = _spots("on", "上", *_TOPS)
UNDER = _spots("under", "下面", *_TOPS)
IN = _spots("in", "里", *_CASES)
IN_FRIDGE = _spots("in", "里", ("fridge", "冰箱"))
NEXT_TO = _spots("next to", "旁边", *_TOPS, *_LANDMARKS)
BEHIND = _spots("behind", "后面", ("door", "门"), ("tree", "树"), ("house", "房子"))
IN_FRONT_OF = _spots("in front of", "前面", *_LANDMARKS)
