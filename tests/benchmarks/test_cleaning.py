"""The noisy mix and how `regard clean` copes with it, and a rehearsal of the training benchmark."""

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import cleaning as script
from benchmarks import noisy_mix
from regard.data.builtin.corpus import load_pairs
from regard.data.text.cleaning.cleaner import Cleaner
from regard.data.text.cleaning.settings import CleaningSettings
from regard.data.text.readers import Pair, PairRecord

TINY = "training.steps=2,training.validate_every=2,batch.tokens=256,training.device=cpu,search.beam=1,model.width=16"
SMALLER = "model.hidden=16,model.heads=2,tokenizer.size=400,model.encoder_layers=1,model.decoder_layers=1"


def test_default_rules_find_the_noise_and_keep_the_clean_pairs() -> None:
    """At least 95 % of the noise is found, and at most 2 % of the clean pairs are lost."""
    corpus, test = load_pairs("train", 8000), load_pairs("test", 300)
    mixed = noisy_mix.make_mix(corpus, test)
    kinds = Counter(one.kind for one in mixed)
    shares = {kind: round(number / len(mixed), 2) for kind, number in kinds.items()}
    assert shares == {"clean": 0.65, "copy": 0.1, "repeat": 0.1, "misaligned": 0.05, "language": 0.05, "overlap": 0.05}
    records = [PairRecord(one.pair, "mix", line) for line, one in enumerate(mixed, start=1)]
    cleaner = Cleaner(CleaningSettings(), ("en", "zh"), (text for pair in test for text in pair))
    kept = [bool(one) for _, mask in cleaner.clean(lambda: iter(records)) for one in mask]
    found = noisy_mix.measure(mixed, kept)
    assert found["noise"]["share"] >= 0.95
    assert found["clean"]["share"] <= 0.02
    assert all(kind["share"] >= 0.9 for kind in found["by_kind"].values()), found["by_kind"]


def test_pair_and_its_repeats_are_one_group() -> None:
    pairs = [Pair("a", "1"), Pair("b", "2"), Pair("c", "3")]
    mixed = [noisy_mix.Labelled(pairs[0], "repeat", 0)]
    mixed += [noisy_mix.Labelled(pair, "clean", origin) for origin, pair in enumerate(pairs)]
    mixed += [noisy_mix.Labelled(Pair("b", "b"), "copy", 1)]
    found = noisy_mix.measure(mixed, [True, False, True, False, True])
    assert found["clean"] == {"distinct": 3, "lost": 1, "share": 1 / 3, "not_counted_in_test": 0}
    assert found["by_kind"]["repeat"] == {"made": 1, "found": 1, "share": 1.0}
    assert found["by_kind"]["copy"] == {"made": 1, "found": 0, "share": 0.0}


def test_order_of_the_output_is_checked() -> None:
    pairs = [Pair("a", "1"), Pair("b", "2"), Pair("a", "1")]
    assert noisy_mix.align(pairs, [pairs[0]]) == [True, False, False]
    with pytest.raises(AssertionError, match="order"):
        noisy_mix.align(pairs, [pairs[1], pairs[0], pairs[1]])


def test_mix_is_written_cleaned_and_trained_on(tmp_path: Path) -> None:
    files = {name: write(tmp_path, name, load_pairs(name, number)) for name, number in (("train", 300), ("test", 20))}
    mix, out = tmp_path / "mix", tmp_path / "out"
    options = [word for name, paths in files.items() for word in (f"--{name}", *paths)]
    noisy_mix.main([str(mix), *options, "--score", *files["test"]])
    result = json.loads((mix / "noisy-mix.json").read_text("utf-8"))
    assert result["pairs"] == len((mix / "labels.tsv").read_text("utf-8").splitlines())
    assert result["by_kind"]["copy"]["share"] == 1
    report = json.loads((mix / "report.json").read_text("utf-8"))
    assert report["kept"] == len((mix / "clean.zh").read_text("utf-8").splitlines())
    changes = [word for change in f"{TINY},{SMALLER}".split(",") for word in ("--set", change)]
    words = [str(mix), str(out), "--languages", "en", "zh", "--tokenize", "zh", "--seed", "1", *changes]
    for name in script.DATA:
        script.main([*words, "--child", name])
    table = script.summarise(script.parse([*words]))
    assert {row["data"]: row["pairs"] for row in table["rows"]} == {"noisy": result["pairs"], "clean": report["kept"]}
    assert table["means"].keys() == set(script.DATA)
    assert "tok:zh" in table["rows"][0]["score"]["signature"]
    assert table["mix"]["noise"] == result["noise"]


def write(folder: Path, name: str, pairs: list[Pair]) -> list[str]:
    paths = [folder / f"{name}.{language}" for language in ("en", "zh")]
    for side, path in enumerate(paths):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    return [str(path) for path in paths]
