"""Expressions of time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Time:
    """A time or a frequency in both languages."""

    english: str
    chinese: str
    combinations: tuple[str, ...] = ()


WEEKDAYS = (
    ("Monday", "星期一"),
    ("Tuesday", "星期二"),
    ("Wednesday", "星期三"),
    ("Thursday", "星期四"),
    ("Friday", "星期五"),
    ("Saturday", "星期六"),
    ("Sunday", "星期天"),
)
SEASONS = (("spring", "春天"), ("summer", "夏天"), ("autumn", "秋天"), ("winter", "冬天"))


def _on_weekdays(english: str, chinese: str) -> tuple[Time, ...]:
    return tuple(Time(f"{english} {day}", f"{chinese} {day_chinese}") for day, day_chinese in WEEKDAYS)


JUST_NOW = (
    Time("yesterday", "昨天"),
    Time("yesterday morning", "昨天 早上"),
    Time("yesterday afternoon", "昨天 下午"),
    Time("last night", "昨天 晚上"),
    Time("this morning", "今天 早上"),
)
RECENT = (*JUST_NOW, *_on_weekdays("last", "上个"))
LONG_AGO = (
    Time("last week", "上个 星期"),
    Time("last month", "上个 月"),
    Time("last year", "去年"),
    Time("two days ago", "两 天 前"),
    Time("three weeks ago", "三 个 星期 前"),
    Time("five months ago", "五 个 月 前"),
    Time("two years ago", "两 年 前"),
    Time("four years ago", "四 年 前"),
)
SOON = (
    Time("tomorrow", "明天"),
    Time("tomorrow morning", "明天 早上"),
    Time("tomorrow afternoon", "明天 下午"),
    Time("tonight", "今天 晚上"),
    Time("this weekend", "这个 周末"),
    *_on_weekdays("next", "下个"),
)
LATER = (
    Time("next week", "下个 星期"),
    Time("next month", "下个 月"),
    Time("next year", "明年"),
)
# Times that can precede a negation: 他周末不工作.
AT_TIMES = (
    Time("on weekends", "周末"),
    Time("after dinner", "晚饭 后"),
    Time("before dinner", "晚饭 前"),
    Time("after lunch", "午饭 后"),
)
EVERY = (
    Time("every day", "每天"),
    Time("every morning", "每天 早上"),
    Time("every afternoon", "每天 下午"),
    Time("every evening", "每天 晚上"),
    Time("every week", "每个 星期"),
    *_on_weekdays("every", "每个"),
)
REGULARLY = (*AT_TIMES, *EVERY)
OFTEN = (
    Time("often", "经常"),
    Time("usually", "通常"),
    Time("always", "总是"),
    Time("sometimes", "有时候"),
    Time("never", "从来 不"),
)
NOW = Time("now", "现在")
TODAY = Time("today", "今天")
