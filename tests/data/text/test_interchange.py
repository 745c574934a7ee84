"""TMX and XLIFF as parallel text."""

import gzip
from pathlib import Path

import pytest

from regard.data.text.interchange import TmxWriter, read_interchange, read_units
from regard.data.text.readers import Pair, find_shards, read_parallel
from regard.errors import UserError
from regard.training.progress import Progress
from regard.training.tasks.translation.data import complete_languages
from tests.conftest import small_recipe

TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
  <tu><prop type="x">ignored</prop>
    <tuv xml:lang="zh"><seg>我&lt;喜欢&gt;苹果</seg></tuv>
    <tuv xml:lang="en"><seg>I <bpt i="1">&lt;b&gt;</bpt>love<ept i="1"/>
      <hi>apples</hi></seg></tuv></tu>
  <tu><tuv xml:lang="en"><seg>Only English</seg></tuv></tu>
</body></tmx>"""
XLIFF_1 = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="en" target-language="de" original="x"><body><group>
<trans-unit id="1"><source>A <g id="1">house</g><x id="2"/></source><target>Ein Haus</target>
<alt-trans><source>A horse</source><target>Ein Pferd</target></alt-trans></trans-unit>
<trans-unit id="2"><source>Open</source><target/></trans-unit></group></body></file></xliff>"""
XLIFF_2 = """<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="fr">
<file id="f"><unit id="u">
<segment><source>One <pc id="1">house</pc>.</source><target>Une maison.</target></segment>
<ignorable><source> </source></ignorable>
<segment><source>Two.</source><target>Deux.</target></segment></unit></file></xliff>"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "pairs"),
    [
        ("a.tmx", TMX, [("I love apples", "我<喜欢>苹果")]),
        ("a.xlf", XLIFF_1, [("A house", "Ein Haus")]),
        ("a.xliff", XLIFF_2, [("One house.", "Une maison."), ("Two.", "Deux.")]),
    ],
)
def test_pairs_are_read_without_codes_and_suggestions(tmp_path: Path, name: str, text: str, pairs: list[Pair]) -> None:
    assert list(read_parallel(write(tmp_path, name, text))) == pairs
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    assert list(read_parallel(tmp_path / "folder")) == pairs


def test_languages_are_chosen_by_keys_and_known_to_a_run(tmp_path: Path) -> None:
    third = TMX.replace("<tu><tuv", '<tu><tuv xml:lang="de-AT"><seg>Nur</seg></tuv><tuv')
    path = write(tmp_path, "a.tmx", third)
    assert list(read_parallel(path, keys=("de", "en"))) == [("Nur", "Only English")]
    with pytest.raises(UserError, match=r"line 8: has the languages de-AT, en, zh; set keys to two of them"):
        list(read_parallel(path))
    with pytest.raises(UserError, match="no unit has texts in fr and en; its languages are en, zh, de-AT"):
        list(read_parallel(path, keys=("fr", "en")))
    recipe = small_recipe(write(tmp_path, "b.tmx", TMX))
    assert complete_languages(recipe, Progress(1)).data.languages == ("en", "zh")


def test_file_is_read_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx"
    unit = '<tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="de"><seg>b</seg></tuv></tu>\n'
    path.write_text(f"<tmx><header/><body>{unit * 5000}<broken", encoding="utf-8")
    units = read_units(path)
    assert [next(units).line for _ in range(3)] == [1, 2, 3]  # although the end is damaged
    with pytest.raises(UserError, match=r"a.tmx, line 5001: is not valid XML \("):
        list(units)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html></html>", "is neither TMX nor XLIFF"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><tmx/>', "line 1: declares an entity"),
        (f"<tmx><tu><seg>{'a' * 2**21}</seg></tu></tmx>", "a unit has more than 1,048,576 characters"),
        ("<tmx>" + "<a>" * 300, "elements are nested more than 256 deep"),
        ("<tmx></tmx>", "no unit has texts in two languages; its languages are not stated"),
        ("", "is not valid XML"),
        ('<?xml version="1.0" encoding="UTF-9"?><tmx/>', "line 1: has an encoding that is not supported"),
        ('<?xml version="1.0" encoding="gbk"?><tmx/>', "line 1: has an encoding that is not supported"),
    ],
)
def test_hostile_files_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(read_interchange(write(tmp_path, "a.tmx", text)))


def test_written_memory_is_read_back(tmp_path: Path) -> None:
    pairs = [Pair("a < b & c", 'x "y"'), Pair("tab\there", "控制\x01字符")]
    with (tmp_path / "a.tmx").open("w", encoding="utf-8") as file:
        writer = TmxWriter(file.write, ("en", "zh"))
        for pair in pairs:
            writer.add(*pair)
        writer.close()
    assert list(read_interchange(tmp_path / "a.tmx")) == [pairs[0], ("tab here", "控制\ufffd字符")]
    assert [shard.languages() for shard in find_shards(tmp_path / "a.tmx")] == [("en", "zh")]
