"""Follow docs/guides/domain.md with the strings of Python's documentation (pydocs-en-zh), and score the result.

    python benchmarks/domain.py DATA OUT [--only NAME ...] [--set group.key=value ...]
    python benchmarks/domain.py DATA OUT --export

DATA contains train, valid and test as .en.xz and .zh.xz. The lines are written as .po files, which the script of the
guide reads. One model is trained for each entry of `VARIANTS`; the best one of the validation also translates with a
glossary. Writes OUT/domain.json after each part, and the runs. --export exports the best run to CTranslate2 and adds
its scores.
"""

import argparse
import hashlib
import itertools
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from harness import environment, save_result

from regard.data.text.readers import read_pairs
from regard.decoding.settings import SearchSettings
from regard.evaluation.metrics import bleu, chrf
from regard.ops.dispatch import choose_device
from regard.pipelines.constraints import Constraints
from regard.pipelines.translator import Translator
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe

GUIDE = Path(__file__).parent.parent / "docs" / "guides" / "domain.md"
VARIANTS: dict[str, tuple[str, ...]] = {
    "short": ("training.steps=5000",),
    "r-drop": ("model.dropout=0.3", "objective.r_drop=5", "batch.tokens=8192", "training.steps=4000"),
}
"""Changes to the default settings."""
TERMS = {
    "argument": "参数",
    "attribute": "属性",
    "decorator": "装饰器",
    "dictionary": "字典",
    "directory": "目录",
    "environment variable": "环境变量",
    "event loop": "事件循环",
    "exception": "异常",
    "expression": "表达式",
    "file descriptor": "文件描述符",
    "function": "函数",
    "method": "方法",
    "module": "模块",
    "sequence": "序列",
    "string": "字符串",
    "subclass": "子类",
    "thread": "线程",
}
"""Terms whose translation is in at least nine tenths of the training translations."""
PLURALS = {"dictionary": "dictionaries", "directory": "directories", "subclass": "subclasses"}
STRINGS_PER_FILE = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--lines", type=int, help="at most so many lines of each file, for a trial")
    parser.add_argument("--beside", help="what else uses the machine meanwhile, stated with the times")
    parser.add_argument("--export", action="store_true")
    arguments = parser.parse_args()
    test = read(arguments.data, "test")[: arguments.lines]
    file = arguments.out / "domain.json"
    if arguments.export:
        result = json.loads(file.read_text("utf-8"))
        result["exported"] = export(arguments.out / result["best"], arguments.out / "ctranslate2", test)
    else:
        write_po_files(arguments.data, arguments.out / "locale", arguments.lines)
        read_po_files(arguments.out)
        changes = "".join(f" --set {one}" for one in arguments.changes)
        result = {
            "what": f"strings of Python's documentation, {len(test):,} test strings of other files, beam 5",
            "rows": [],
            **environment(choose_device("auto")),
            "command": f"python benchmarks/domain.py DATA OUT{changes}",
        }
        if arguments.beside:
            result["beside"] = arguments.beside
        for name in arguments.only:
            result["rows"].append(train(name, arguments.out, arguments.changes, test))
            result["best"] = max(result["rows"], key=lambda row: row["validation"]["bleu"])["name"]
            save_result(result, file)
        result["glossary"] = translate_with_glossary(arguments.out / result["best"], test)
    save_result(result, file)
    print(file.read_text("utf-8"))


def read(data: Path, split: str) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(data / f"{split}.en.xz", data / f"{split}.zh.xz")]


def write_po_files(data: Path, folder: Path, limit: int | None) -> None:
    """Write the lines as .po files, whose names put them into their split: see `split_of` in the guide."""
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, list[str]] = defaultdict(list)
    numbers = itertools.count()
    for split in ("train", "valid", "test"):
        pairs = read(data, split)[:limit]
        for start in range(0, len(pairs), STRINGS_PER_FILE):
            while not names[split]:
                name = f"{next(numbers)}.po"
                number = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10
                names[{0: "test", 1: "valid"}.get(number, "train")].append(name)
            entries = [
                f"msgid {json.dumps(source, ensure_ascii=False)}\nmsgstr {json.dumps(target, ensure_ascii=False)}\n"
                for source, target in pairs[start : start + STRINGS_PER_FILE]
            ]
            (folder / names[split].pop()).write_text("\n".join(entries), encoding="utf-8")


def read_po_files(out: Path) -> None:
    """Run the script of the guide, which writes train.en-zh.tsv, valid.en-zh.tsv and test.en-zh.tsv."""
    (script,) = re.findall(r'^```python title="read_po.py"\n(.*?)^```', GUIDE.read_text("utf-8"), re.M | re.S)
    (out / "read_po.py").write_text(script, encoding="utf-8")
    subprocess.run([sys.executable, "read_po.py", "locale"], cwd=out, check=True)


def train(name: str, out: Path, changes: list[str], test: list[tuple[str, str]]) -> dict[str, Any]:
    """Train one variant and return its settings, scores and times."""
    files = {"source": "train.en-zh.tsv", "valid_source": "valid.en-zh.tsv", "store": "store"}
    overrides = {f"data.{key}": str(out / file) for key, file in files.items()}
    print(f"== {name}")
    outcome = run_recipe(load_recipe(None, [*VARIANTS[name], *changes], overrides), out / name)
    translator = Translator.load(out / name / "best", device=choose_device("auto"))
    started = time.perf_counter()
    translations = translate(translator, [source for source, _ in test])
    seconds = time.perf_counter() - started
    (out / f"{name}.zh").write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    return {
        "name": name,
        "settings": list(VARIANTS[name]),
        **score(translations, test),
        "validation": outcome.scores,
        "best_step": outcome.best_step,
        "steps": outcome.steps,
        "training_seconds": round(outcome.seconds, 1),
        "translation_seconds": round(seconds, 1),
        "parameters": sum(weight.numel() for weight in translator.model.parameters()),
    }


def translate(
    translator: Translator,
    sources: list[str],
    constraints: list[Constraints] | None = None,
    settings: SearchSettings | None = None,
) -> list[str]:
    found = translator.hypotheses(sources, settings or SearchSettings(beam=5), constraints, split=False)
    return [hypotheses[0].text for hypotheses in found]


def score(translations: list[str], test: list[tuple[str, str]]) -> dict[str, Any]:
    references = [target for _, target in test]
    scores = bleu(translations, references, "zh"), chrf(translations, references)
    print(*scores, sep="\n")
    return {"bleu": scores[0].as_dict(), "chrf": scores[1].as_dict()}


def terms_in(source: str) -> tuple[str, ...]:
    """Return the required translations of the terms in a string; terms in markup such as ``string`` do not count."""
    return tuple(
        translation
        for term, translation in TERMS.items()
        if re.search(rf"(?<![\w`*])({re.escape(term)}|{PLURALS.get(term, f'{term}s')})(?![\w`*])", source)
    )


def translate_with_glossary(run: Path, test: list[tuple[str, str]]) -> dict[str, Any]:
    """Translate with beam 8, with and without required terms, and count the terms that the translations contain."""
    translator, settings = Translator.load(run / "best", device=choose_device("auto")), SearchSettings(beam=8)
    sources, terms = [source for source, _ in test], [terms_in(source) for source, _ in test]
    without = translate(translator, sources, settings=settings)
    started = time.perf_counter()
    required = translate(translator, sources, [Constraints(required=each) for each in terms], settings)
    seconds = time.perf_counter() - started
    rows = [
        {"name": name, **score(translations, test), "terms": count_terms(terms, translations)}
        for name, translations in (("without glossary", without), ("with glossary", required))
    ]
    return {
        "entries": len(TERMS),
        "strings": sum(map(bool, terms)),
        "terms": sum(map(len, terms)),
        "in_references": count_terms(terms, [target for _, target in test]),
        "seconds": round(seconds, 1),
        "rows": rows,
    }


def count_terms(terms: list[tuple[str, ...]], texts: list[str]) -> int:
    """Return how many of the terms of each text it contains."""
    return sum(term in text for wanted, text in zip(terms, texts, strict=True) for term in wanted)


def export(run: Path, folder: Path, test: list[tuple[str, str]]) -> dict[str, Any]:
    """Export a run to CTranslate2 with int8 weights and score it on this CPU."""
    words = ["export", str(run), str(folder), "--to", "ctranslate2", "--quantization", "int8"]
    subprocess.run([sys.executable, "-m", "regard", *words], check=True)
    started = time.perf_counter()
    translations = translate(Translator.load(folder), [source for source, _ in test])
    return {
        **score(translations, test),
        "seconds": round(time.perf_counter() - started, 1),
        "size": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        **environment("cpu", "ctranslate2"),
    }


if __name__ == "__main__":
    main()
