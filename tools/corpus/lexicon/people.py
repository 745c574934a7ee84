"""People: pronouns, names, relatives and occupations."""

from dataclasses import dataclass
from typing import Literal

Be = Literal["am", "is", "are"]


@dataclass(frozen=True, slots=True)
class Person:
    """A person in a sentence; `pronoun` is empty if the noun does not determine the gender."""

    english: str
    objective: str
    chinese: str
    be: Be
    pronoun: str
    combinations: tuple[str, ...] = ()

    @property
    def was(self) -> str:
        return "were" if self.be == "are" else "was"

    @property
    def do(self) -> str:
        return "does" if self.be == "is" else "do"

    @property
    def have(self) -> str:
        return "has" if self.be == "is" else "have"


PRONOUNS = (
    Person("I", "me", "我", "am", "I"),
    Person("you", "you", "你", "are", "you"),
    Person("he", "him", "他", "is", "he"),
    Person("she", "her", "她", "is", "she"),
    Person("we", "us", "我们", "are", "we"),
    Person("they", "them", "他们", "are", "they"),
)
PRONOUN_BY_NAME = {person.pronoun: person for person in PRONOUNS}

NAMES = (
    Person("Tom", "Tom", "汤姆", "is", "he"),
    Person("Jack", "Jack", "杰克", "is", "he"),
    Person("Peter", "Peter", "彼得", "is", "he"),
    Person("David", "David", "大卫", "is", "he"),
    Person("Li Ming", "Li Ming", "李明", "is", "he"),
    Person("Mary", "Mary", "玛丽", "is", "she"),
    Person("Lucy", "Lucy", "露西", "is", "she"),
    Person("Anna", "Anna", "安娜", "is", "she"),
    Person("Emma", "Emma", "艾玛", "is", "she"),
    Person("Wang Fang", "Wang Fang", "王芳", "is", "she"),
)


def _couple(one: Person, other: Person) -> Person:
    english, objective = f"{one.english} and {other.english}", f"{one.english} and {other.objective}"
    pronoun = "we" if other.pronoun == "I" else "they"
    return Person(english, objective, f"{one.chinese} 和 {other.chinese}", "are", pronoun)


# At least one of them is the speaker or a man: two women would be 她们, which English does not distinguish.
COUPLES = tuple(
    _couple(one, other)
    for one in NAMES
    for other in (PRONOUNS[0], *NAMES)
    if one != other and (other.pronoun == "I" or "he" in (one.pronoun, other.pronoun))
)

# English, Chinese
POSSESSORS = (("my", "我"), ("your", "你"), ("his", "他"), ("her", "她"))
GROUP_POSSESSORS = (("our", "我们"), ("their", "他们"))
NAMED_POSSESSORS = tuple((f"{name.english}'s", name.chinese) for name in NAMES)

# English, Chinese, pronoun
RELATIVES = (
    ("mother", "妈妈", "she"),
    ("father", "爸爸", "he"),
    ("grandmother", "奶奶", "she"),
    ("grandfather", "爷爷", "he"),
    ("older brother", "哥哥", "he"),
    ("older sister", "姐姐", "she"),
    ("younger brother", "弟弟", "he"),
    ("younger sister", "妹妹", "she"),
    ("uncle", "叔叔", "he"),
    ("aunt", "阿姨", "she"),
    ("son", "儿子", "he"),
    ("daughter", "女儿", "she"),
)


def _relate(possessors: tuple[tuple[str, str], ...], link: str) -> tuple[Person, ...]:
    return tuple(
        Person(f"{whose} {relative}", f"{whose} {relative}", f"{whose_chinese} {link} {chinese}", "is", pronoun)
        for whose, whose_chinese in possessors
        for relative, chinese, pronoun in RELATIVES
    )


# 的 is omitted between a pronoun and a relative (我妈妈), but not after a name (汤姆的妈妈).
FAMILY = _relate(POSSESSORS, "")
OTHERS_FAMILY = _relate(NAMED_POSSESSORS, "的")


@dataclass(frozen=True, slots=True)
class Role:
    """An occupation or a relation to other people."""

    english: str
    chinese: str
    measure: str
    plural: str


OCCUPATIONS = (
    Role("teacher", "老师", "位", "teachers"),
    Role("doctor", "医生", "位", "doctors"),
    Role("nurse", "护士", "位", "nurses"),
    Role("driver", "司机", "位", "drivers"),
    Role("lawyer", "律师", "位", "lawyers"),
    Role("singer", "歌手", "位", "singers"),
    Role("writer", "作家", "位", "writers"),
    Role("engineer", "工程师", "位", "engineers"),
    Role("chef", "厨师", "位", "chefs"),
    Role("student", "学生", "个", "students"),
)
ACQUAINTANCES = (
    Role("teacher", "老师", "位", "teachers"),
    Role("friend", "朋友", "个", "friends"),
    Role("classmate", "同学", "个", "classmates"),
    Role("neighbor", "邻居", "个", "neighbors"),
    Role("boss", "老板", "个", "bosses"),
)
YOUNG_PEOPLE = (
    Role("child", "孩子", "个", "children"),
    Role("boy", "男孩", "个", "boys"),
    Role("girl", "女孩", "个", "girls"),
)

ACQUAINTED = tuple(
    Person(f"{whose} {role.english}", f"{whose} {role.english}", f"{chinese} 的 {role.chinese}", "is", "")
    for whose, chinese in (*POSSESSORS, *GROUP_POSSESSORS)
    for role in ACQUAINTANCES
)


def _point_out(role: Role) -> tuple[Person, ...]:
    choices: tuple[tuple[str, str, Be], ...] = (
        (f"this {role.english}", f"这 {role.measure} {role.chinese}", "is"),
        (f"that {role.english}", f"那 {role.measure} {role.chinese}", "is"),
        (f"these {role.plural}", f"这些 {role.chinese}", "are"),
        (f"those {role.plural}", f"那些 {role.chinese}", "are"),
    )
    return tuple(Person(english, english, chinese, be, "") for english, chinese, be in choices)


STRANGERS = tuple(person for role in (*OCCUPATIONS, *YOUNG_PEOPLE) for person in _point_out(role))
# "The doctor" is 医生 without a determiner.
AT_HAND = (
    *(Person(f"the {role.english}", f"the {role.english}", role.chinese, "is", "") for role in OCCUPATIONS[:-1]),
    *(
        Person(f"the {role.plural}", f"the {role.plural}", f"{role.chinese} 们", "are", "")
        for role in (*OCCUPATIONS, YOUNG_PEOPLE[0])
    ),
)
# English, Chinese
MINE = (("mine", "我 的"), ("yours", "你 的"), ("his", "他 的"), ("hers", "她 的"), ("ours", "我们 的"))
