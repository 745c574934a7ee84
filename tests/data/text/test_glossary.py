"""Glossaries: reading, and finding terms and their translations in texts."""

from pathlib import Path

import pytest

from regard.data.text.glossary import Glossary, count_needed, find_kept, find_target
from regard.data.text.inflection import is_form_of
from regard.errors import UserError


def found(terms: dict[str, str], text: str, language: str = "en") -> list[tuple[str, str]]:
    """Return the occurrences as they are written in the text, and their terms."""
    matches = Glossary.of(terms).find(text, language)
    return [(text[match.start : match.end], match.term.source) for match in matches]


@pytest.mark.parametrize(
    ("language", "word", "term"),
    [
        ("en", "Files", "file"),
        ("en", "queries", "query"),
        ("en", "classes", "class"),
        ("en", "caching", "cache"),
        ("en", "dependencies", "dependency"),
        ("en", "APIs", "API"),
        ("de", "Häuser", "Haus"),
        ("de", "europäischen", "europäisch"),
        ("de", "macht", "machen"),
        ("de", "Äpfel", "Apfel"),
        ("fr", "chevaux", "cheval"),
        ("es", "capaces", "capaz"),
        ("ru", "модулем", "модуль"),
    ],
)
def test_inflected_forms_are_recognised(language: str, word: str, term: str) -> None:
    assert is_form_of(word, term, language)


@pytest.mark.parametrize(
    ("language", "word", "term"),
    [
        ("en", "book", "books"),
        ("en", "write", "writes"),
        ("de", "Haus", "Häuser"),
        ("en", "listen", "list"),
        ("en", "filter", "file"),
        ("en", "it", "IT"),
        ("en", "string", "str"),
        ("de", "Hausboot", "Haus"),
        ("ru", "дома", "дым"),
    ],
)
def test_other_words_are_not_forms_of_a_term(language: str, word: str, term: str) -> None:
    assert not is_form_of(word, term, language)


def test_longest_of_overlapping_terms_wins() -> None:
    terms = {"file": "文件", "file descriptor": "文件描述符", "descriptor table": "描述符表"}
    text = "Files have file descriptors; the file descriptor table too."
    assert found(terms, text) == [
        ("Files", "file"),
        ("file descriptors", "file descriptor"),
        ("file", "file"),
        ("descriptor table", "descriptor table"),
    ]


def test_form_of_the_glossary_wins_over_other_forms() -> None:
    assert found({"house": "Haus", "houses": "Häuser"}, "A house and HOUSES") == [
        ("house", "house"),
        ("HOUSES", "houses"),
    ]


def test_terms_are_whole_words_or_characters_without_spaces() -> None:
    assert found({"cat": "猫"}, "concatenate cat-like, my_cat") == [("cat", "cat")]
    assert found({"数据": "data", "数据库": "database"}, "大数据库和数据", "zh") == [
        ("数据库", "数据库"),
        ("数据", "数据"),
    ]
    assert found({"数据": "data", "C++": "C++"}, "Python数据, C++ 和 C ++", "zh") == [("数据", "数据"), ("C++", "C++")]


def test_markup_has_no_terms() -> None:
    text = ":class:`string` ``a string`` {string} %(string)s <b string='x'>string</b>"
    assert found({"string": "字符串"}, text) == [("string", "string")]


def test_text_may_be_decomposed() -> None:
    text = "Die A\u0308pfel"
    assert found({"Äpfel": "apples"}, text, "de") == [("A\u0308pfel", "Äpfel")]


def test_translation_is_found_as_whole_words() -> None:
    assert find_target("Haus, Hausboot, (Haus) und Haus-Boot", "Haus") == [0, 17, 27]
    assert find_target("Cats love the cat", "cat") == [14]
    assert find_target("Cat and Python猫", "cat") == [0] and find_target("Cat and Python猫", "Python") == [8]
    assert find_target("大数据库数据", "数据") == [1, 4]


def test_each_occurrence_needs_its_translation() -> None:
    glossary = Glossary([("string", "字符串"), ("string literal", "字符串字面量")])
    matches = glossary.find("A string, a string, a string literal", "en")
    assert count_needed(matches) == {"字符串字面量": 1, "字符串": 3}
    assert find_kept("字符串字面量", matches) == [False, False, True]
    assert find_kept("字符串和字符串字面量", matches) == [True, False, True]
    assert find_kept("字符串字符串字符串", matches) == [True, True, False]


def test_file_is_read_with_header_comments_and_further_columns(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("en\tzh\n# comment\n\n cat \t猫\tnoun\n  tree  house\t树屋\ncat\t猫\n", encoding="utf-8")
    assert Glossary.read(path).terms == (("cat", "猫"), ("tree house", "树屋"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cat\tX\ndog\n", "line 2: has no tab; write a source term, a tab and its translation"),
        (b"cat\tX\n\tY\n", "line 2: the source term is empty"),
        (b"cat\t \n", "line 1: the translation is empty"),
        (b"cat\tX\ndog\tY\ncat\tZ\n", "line 3: 'cat' is 'Z', but 'X' in .*line 1; keep one of them"),
        (b"cat\t" + b"x" * 201, "line 1: has 201 characters; a term has at most 200"),
        (b"cat\t\xff\n", "line 1: byte 5 of the line is not valid UTF-8"),
        (b"en\tzh\n", "contains no terms; a glossary has a source term"),
    ],
)
def test_malformed_files_are_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        Glossary.read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["terms.tsv", 3, ["ab"], [["a", "b", "c"]], {"a": 1}, [["a", None]]])
def test_values_of_json_are_checked(value: object) -> None:
    with pytest.raises(
        UserError, match=r"glossary: .*(expected terms|must be a pair|needs a source term|must be strings)"
    ):
        Glossary.parse(value)


def test_number_of_terms_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.text.glossary.MAX_TERMS", 3)
    (tmp_path / "few.tsv").write_text("a\tx\nb\ty\na\tx\n")
    assert len(Glossary.of(tmp_path / "few.tsv").terms) == 2
    (tmp_path / "many.tsv").write_text("a\tx\nb\ty\na\tx\nb\ty\n")
    with pytest.raises(UserError, match=r"many\.tsv, line 4: a glossary has at most 3 terms; remove the others"):
        Glossary.of(tmp_path / "many.tsv")
