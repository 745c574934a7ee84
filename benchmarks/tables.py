"""Writes the tables of README.md and the pages in docs from benchmarks/results and from the settings themselves.

python benchmarks/tables.py           writes them
python benchmarks/tables.py --check   only says whether they are up to date
"""

import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import training_tables
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from regard.attention.settings import LinearSettings, LocalSettings, RoutingSettings
from regard.decoding.settings import ParallelSettings
from regard.evaluation.speed import Result, tabulate
from regard.models.parallel import ParallelTransformerConfig
from regard.models.transformer import TransformerConfig
from regard.training.classification.recipe import ClassificationRecipe
from regard.training.parallel.settings import ParallelTeachingSettings
from regard.training.recipe import TrainingSettings
from regard.training.translation.recipe import TranslationRecipe
from regard.vision.augmentation import PRESETS, AugmentationSettings
from regard.vision.sets import ImageSettings

ROOT = Path(__file__).parent.parent
HIDDEN = {f"model.{name}" for name in ("source_vocab", "target_vocab", "kind", "pad", "bos", "eos")}


def write_results() -> str:
    runs = [json.loads(p.read_text("utf-8")) for p in sorted(ROOT.glob("benchmarks/results/multi30k-en-de-seed*.json"))]
    if not runs:
        return "No results yet."
    scores = [run["score"]["value"] for run in runs]
    seeds = ", ".join(f"{score:.2f}" for score in scores)
    first = runs[0]
    return "\n".join(
        (
            "| what | BLEU, mean of seeds | each seed | machine |",
            "| --- | --- | --- | --- |",
            f"| {first['what']} | **{statistics.mean(scores):.2f}** | {seeds} | {first['machine']} |",
            "",
            f"Signature `{first['score']['signature']}`; recipe `multi30k-en-de`, {first['steps']} steps, weights "
            f"averaged over the last fifth; `{first['command']}`, {first['date']}, torch {first['versions']['torch']}.",
        )
    )


def write_decoding() -> str:
    path = ROOT / "benchmarks" / "results" / "decoding-cpu.json"
    if not path.exists():
        return "No results yet."
    result = json.loads(path.read_text("utf-8"))
    lines = [
        "| batch | beam | transformers `generate`, tokens/s | regard, tokens/s | ratio | same output |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        theirs, ours = row["huggingface_tokens_per_second"], row["regard_tokens_per_second"]
        same = f"{row['same_sentences']} of {row['batch']}"
        lines.append(f"| {row['batch']} | {row['beam']} | {theirs:,.0f} | {ours:,.0f} | {row['ratio']:.2f} | {same} |")
    versions = f"torch {result['versions']['torch']}, transformers {result['versions']['transformers']}"
    how = f"{result['model']}; {result['what']}; medians, in turns; {result['machine']}, {versions}, {result['date']}"
    return "\n".join((*lines, "", f"{how}; `{result['command']}`."))


def write_serving() -> str:
    path = ROOT / "benchmarks" / "results" / "serving.json"
    if not path.exists():
        return "No results yet."
    result = json.loads(path.read_text("utf-8"))
    lines = [
        "| | texts/s | p50, ms | p95, ms | p99, ms | other than offline |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, key in (("in batches", "batching"), ("one by one", "without_batching")):
        found, times = result[key], result[key]["milliseconds"]
        shown = " | ".join(f"{times[p]:,.0f}" for p in ("p50", "p95", "p99"))
        lines.append(f"| {name} | {found['sentences_per_second']:,.0f} | {shown} | {found['different_answers']} |")
    lines.append(f"| `Translator`, no server | {result['offline_texts_per_second']:,.0f} | | | | |")
    memory = result["memory"]["megabytes"]
    server, workers = ([one[key] for one in memory] for key in ("server", "workers"))
    return "\n".join(
        (
            *lines,
            "",
            f"{result['what']}; {result['model']}; {result['text']}. Statuses: "
            f"{', '.join(f'{status} ({n:,})' for status, n in result['batching']['statuses'].items())}. Over "
            f"{result['memory']['requests']:,} requests the server held {min(server)} to {max(server)} MB and its "
            f"workers {min(workers):,} to {max(workers):,} MB. {result['machine']}, "
            f"torch {result['versions']['torch']}, {result['date']}; `{result['command']}`.",
        )
    )


def write_kernels() -> str:
    path = ROOT / "benchmarks" / "results" / "kernels-gpu.json"
    if not path.exists():
        return "No results yet."
    result = json.loads(path.read_text("utf-8"))
    found = {(row["part"], row["name"]): row for row in result["rows"]}
    lines = [
        "| attention of short sequences | who | forward | both | both, host included | error of the context | of dq |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind in ("self", "causal", "cross"):
        for path_name, who in (("short", "ours"), ("varlen", "PyTorch's varlen_attn")):
            time, error = (found[part, f"{kind}, {path_name}"] for part in ("workload", "agreement"))
            figures = [f"{time[key]:.2f}" for key in ("forward device", "both device", "both eager")]
            lines.append(f"| {kind} | {who} | {' | '.join(figures)} | {error['out']:.5f} | {error['dq']:.5f} |")
    how = f"{result['what']}; {result['machine']}, torch {result['versions']['torch']}, {result['date']}"
    return "\n".join((*lines, "", f"{how}; `{result['command']}`."))


def write_engines() -> str:
    """Tokens a second of every engine, and how much of it float32 says too."""
    path = ROOT / "benchmarks" / "results" / "engines.json"
    if not path.exists():
        return "No results yet."
    result = json.loads(path.read_text("utf-8"))
    places = list(dict.fromkeys((row["batch"], row["beam"]) for row in result["rows"]))
    heads = ["engine", *(f"batch {batch}, beam {beam}" for batch, beam in places), "same words"]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    for engine in dict.fromkeys(row["engine"] for row in result["rows"]):
        rows = {(row["batch"], row["beam"]): row for row in result["rows"] if row["engine"] == engine}
        least = min(row["same_words"] for row in rows.values())
        cells = (f"{rows[place]['tokens_per_second']:,.0f}" for place in places)
        lines.append(f"| {engine} | {' | '.join(cells)} | {least:.1%} |")
    versions = ", ".join(f"{name} {result['versions'][name]}" for name in ("torch", "transformers", "ctranslate2"))
    how = f"Tokens a second, medians, and the least share of the same words. {result['model']}; {result['what']}"
    return "\n".join((*lines, "", f"{how}; {result['machine']}, {versions}, {result['date']}; `{result['command']}`."))


def write_quantised() -> str:
    """What smaller numbers cost a trained model, and what they win."""
    path = ROOT / "benchmarks" / "results" / "quantised.json"
    if not path.exists():
        return "No results yet."
    result = json.loads(path.read_text("utf-8"))
    results = [Result.from_dict(one) for one in result["results"]]
    signature = f"`{results[0].score.signature}`" if results[0].score else ""
    return f"{tabulate(results)}\n\nMilliseconds are medians from text to text; {signature}; {result['machine']}."


def write_teaching() -> str:
    path = ROOT / "benchmarks" / "results" / "teaching.json"
    if not path.exists():
        return "No results yet."
    result = json.loads(path.read_text("utf-8"))
    lines = ["| method | BLEU | what it should change | with it | without |", "| --- | --- | --- | --- | --- |"]
    for row in result["rows"]:
        figures = ("" if row[key] is None else f"{row[key]:.3f}" for key in ("value", "without"))
        lines.append(f"| {row['method']} | {row['bleu']['value']:.2f} | {row['what']} | {' | '.join(figures)} |")
    return "\n".join(
        (
            *lines,
            "",
            f"{result['what'].capitalize()}; signature `{result['rows'][0]['bleu']['signature']}`; "
            f"`{result['command']}` on {result['machine']}, {result['date']}, torch {result['versions']['torch']}.",
        )
    )


def write_settings() -> str:
    lines = ["| key | default | |", "| --- | --- | --- |"]
    for group, field in TranslationRecipe.model_fields.items():
        kind = TransformerConfig if group == "model" else field.annotation
        assert isinstance(kind, type) and issubclass(kind, BaseModel)
        for name, inner in describe(kind, f"{group}."):
            if name in HIDDEN:
                continue
            lines.append(f"| `{name}` | {show_default(inner)} | {inner.description or ''} |")
        if group == "model":
            lines.append(
                "| `model.preset` | `small` | tiny, small, base or big: where the model's other keys start from |"
            )
    return "\n".join(lines)


def write_parallel() -> str:
    """The settings that a model which writes all tokens at once has beside, or instead of, the usual ones."""
    lines = ["| key | default | |", "| --- | --- | --- |"]
    own = set(ParallelTransformerConfig.model_fields) - set(TransformerConfig.model_fields)
    groups = (
        ("model", ParallelTransformerConfig),
        ("parallel", ParallelTeachingSettings),
        ("search", ParallelSettings),
    )
    for group, settings in groups:
        for name, field in settings.model_fields.items():
            if group != "model" or name in own:
                lines.append(f"| `{group}.{name}` | {show_default(field)} | {field.description} |")
    return "\n".join(lines)


def write_trade() -> str:
    """What writing all tokens at once gains and costs, as far as it has been measured."""
    parts = []
    folder = ROOT / "benchmarks" / "results"
    if (folder / "parallel-builtin.json").exists():
        result = json.loads((folder / "parallel-builtin.json").read_text("utf-8"))
        lines = ["| model | search | BLEU | exact |", "| --- | --- | --- | --- |"]
        for row in result["rows"]:
            search = ", ".join(f"{key} {value}" for key, value in row["search"].items())
            exact = f"{row['exact_matches_percent']:.1f}%"
            lines.append(f"| {row['model']} | {search} | {row['score']['value']:.2f} | {exact} |")
        parts.append(
            "\n".join((f"{result['what'].capitalize()}; `{result['command']}`, {result['date']}.", "", *lines))
        )
    for device in ("gpu", "cpu"):
        path = folder / f"parallel-{device}.json"
        if path.exists():
            result = json.loads(path.read_text("utf-8"))
            how = f"{result['what']}; {result['machine']}, torch {result['versions']['torch']}, {result['date']}"
            table = tabulate([Result.from_dict(one) for one in result["results"]])
            parts.append(f"{how}; in brackets, how much faster than the first:\n\n{table}")
    return "\n\n".join(parts) or "No results yet."


def describe(settings: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    """Every key with its field; a group that may be off stands with its own keys."""
    for attribute, field in settings.model_fields.items():
        name = field.alias or attribute
        groups = [kind for kind in get_args(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if len(groups) == 1:
            yield from describe(groups[0], f"{prefix}{name}.")
        else:  # a plain value, or a choice among groups, which has a page of its own
            yield prefix + name, field


def write_kinds() -> str:
    lines = ["| kind | key | default | |", "| --- | --- | --- | --- |"]
    for settings in (LocalSettings, LinearSettings, RoutingSettings):
        for name, field in settings.model_fields.items():
            if name != "kind":
                kind = settings.model_fields["kind"].get_default()
                lines.append(f"| {kind} | `{name}` | {show_default(field)} | {field.description} |")
    return "\n".join(lines)


def write_costs() -> str:
    """How cost grows, where each kind overtakes full attention, and how it stands beside its fastest peer."""
    parts = []
    for device in ("cpu", "gpu"):
        path = ROOT / "benchmarks" / "results" / f"attention-{device}.json"
        if path.exists():
            parts.append(write_cost(json.loads(path.read_text("utf-8"))))
    if parts and (ROOT / "docs" / "images" / "attention-cost.svg").exists():
        parts.append("![Time and memory of each kind by the number of tokens](images/attention-cost.svg)")
    return "\n\n".join(parts) or "No results yet."


def write_cost(result: dict[str, Any]) -> str:
    lines = [
        f"{result['machine']}, torch {result['versions']['torch']}, {result['date']}: {result['what']}. Exponents are "
        "fitted over 4,096 to 65,536 tokens; all figures are of forward and backward together.",
        "",
        "| kind | time grows as | memory grows as | faster than full from | at the longest | same work by peers |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows = {(row["name"], row["length"]): row for row in result["rows"] if "both" in row}
    kinds = [kind for kind in ("full", "local", "linear", "linear-random", "routing") if kind in result["summary"]]
    for kind in kinds:
        summary = result["summary"][kind]
        longest = max(length for name, length in rows if name == kind)
        row = rows[kind, longest]
        time, memory = (show_exponent(summary["exponents"][what]) for what in ("both", "both_bytes"))
        at = summary["overtakes_full_at"]["both"]
        shortest = min(length for name, length in rows if name == kind)
        overtakes = f"{at:,} tokens{' or fewer' if at == shortest else ''}" if at else "no length measured"
        overtakes = "" if kind == "full" else overtakes
        cost = f"{longest:,}: {row['both'] * 1e3:,.1f} ms, {row['both_bytes'] / 2**20:,.0f} MiB"
        peers = "; ".join(compare(rows, kind, peer) for peer, same in result["peers"].items() if same == kind)
        lines.append(f"| {kind} | {time} | {memory} | {overtakes} | {cost} | {peers} |")
    return "\n".join(lines)


def compare(rows: dict[tuple[str, int], Any], kind: str, peer: str) -> str:
    """A peer beside ours at the longest length that both have been measured at."""
    lengths = [length for name, length in rows if name == peer and (kind, length) in rows]
    if not lengths:
        return f"{peer}: does not run here"
    ours, theirs = rows[kind, max(lengths)], rows[peer, max(lengths)]
    time, memory = (theirs[what] / ours[what] for what in ("both", "both_bytes"))
    return f"{peer} at {max(lengths):,}: {time:.2f}× our time, {memory:.2f}× our memory"


def write_classification() -> str:
    lines = ["| key | default | |", "| --- | --- | --- |"]
    for group in ("data", "batch", "training"):
        kind = ClassificationRecipe.model_fields[group].annotation
        assert isinstance(kind, type) and issubclass(kind, BaseModel)
        for name, field in kind.model_fields.items():
            if name not in TrainingSettings.model_fields:
                default = "" if field.is_required() else show_default(field)
                lines.append(f"| `{group}.{name}` | {default} | {field.description} |")
    return "\n".join(lines)


def write_fields(settings: type[BaseModel]) -> str:
    lines = ["| key | default | |", "| --- | --- | --- |"]
    for name, field in settings.model_fields.items():
        lines.append(f"| `{name}` | {show_default(field)} | {field.description} |")
    return "\n".join(lines)


def write_presets() -> str:
    shown = (
        f"`{name}`: {', '.join(f'{k} {v}' for k, v in values.items())}" for name, values in PRESETS.items() if values
    )
    return f"{write_fields(AugmentationSettings)}\n\n{'; '.join(shown)}."


def write_images_speed() -> str:
    """Images a second, by set and by preset."""
    parts = []
    for path in sorted((ROOT / "benchmarks" / "results").glob("images-*.json")):
        result = json.loads(path.read_text("utf-8"))
        lines = [
            "| set | size | stored | read from the store | decoded as asked for |",
            "| --- | --- | --- | --- | --- |",
        ]
        for row in result["sets"]:
            figures = (f"{row[key]:,}" for key in ("store", "read_stored", "read_streamed"))
            lines.append(f"| {row['set']} | {row['size']} | {' | '.join(figures)} |")
        changed = (f"{row['preset']} at {row['size']}: {row['per_second']:,}" for row in result["augmentation"])
        how = f"Images a second on {result['machine']}, torch {result['versions']['torch']}, {result['date']}"
        rest = f"Augmentation in batches of 256: {'; '.join(changed)}. Shapes drawn: {result['shapes']:,}."
        parts.append("\n".join((f"{how}:", "", *lines, "", rest)))
    return "\n\n".join(parts) or "No results yet."


def write_page() -> str:
    """How quickly the page shows a long sentence."""
    path = ROOT / "benchmarks" / "results" / "page.json"
    if not path.exists():
        return "No results yet."
    result = json.loads(path.read_text("utf-8"))
    lines = ["| what scrolls | frames a second | slowest frame in twenty |", "| --- | --- | --- |"]
    for name, frames in result["frames"].items():
        lines.append(f"| {name} | {frames['mean']:.0f} | {frames['slow']:.0f} |")
    return "\n".join(
        (
            f"{result['what'].capitalize()}: it stands {result['seconds']:.2f} s after it is opened, the median, and "
            f"{result['slowest']:.2f} s at the slowest.",
            "",
            *lines,
            "",
            f"{result['machine']}, {result['browser']}, torch {result['versions']['torch']}, {result['date']}; "
            f"`{result['command']}`.",
        )
    )


def show_exponent(value: float | None) -> str:
    return "" if value is None else f"n^{value:.2f}"


def write_quality() -> str:
    path = ROOT / "benchmarks" / "results" / "attention-quality.json"
    if not path.exists():
        return "No results yet."
    result = json.loads(path.read_text("utf-8"))
    lines = ["| kind | recall | copying | demo corpus, BLEU |", "| --- | --- | --- | --- |"]
    for kind, settings in result["kinds"].items():
        cells = (
            show_quality([row for row in result["rows"] if (row["task"], row["kind"]) == (task, kind)])
            for task in ("recall", "copy", "corpus")
        )
        lines.append(f"| `{json.dumps(settings)}` | {' | '.join(cells)} |")
    seeds = len({row["seed"] for row in result["rows"]})
    how = f"{result['what'].capitalize()}; means of {seeds} seeds, in brackets the worst and the best"
    return "\n".join(
        (*lines, "", f"{how}; torch {result['versions']['torch']}, {result['date']}; `{result['command']}`.")
    )


def show_quality(rows: list[dict[str, Any]]) -> str:
    """The mean over seeds, with its range."""
    values = [row["bleu"] if "bleu" in row else 100 * row["accuracy"] for row in rows]
    if not values:
        return ""
    digits, unit = (2, "") if "bleu" in rows[0] else (1, "%")
    mean, least, most = (f"{value:.{digits}f}" for value in (statistics.mean(values), min(values), max(values)))
    return f"{mean}{unit} ({least} to {most})"


def show_default(field: FieldInfo) -> str:
    value: Any = field.get_default()
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, BaseModel):
        value = value.model_dump()
    return "" if field.is_required() else f"`{json.dumps(value, default=str)}`"


def main() -> None:
    stale = []
    for name, marker, text in (
        ("README.md", "results", write_results()),
        ("README.md", "decoding", write_decoding()),
        ("docs/guide.md", "settings", write_settings()),
        ("docs/classifying.md", "settings of classification", write_classification()),
        ("docs/serving.md", "serving", write_serving()),
        ("docs/attention.md", "kernels", write_kernels()),
        ("docs/teaching.md", "teaching", write_teaching()),
        ("docs/quantisation.md", "quantised", write_quantised()),
        ("docs/quantisation.md", "engines", write_engines()),
        ("docs/attention.md", "quality", write_quality()),
        ("docs/attention.md", "cost", write_costs()),
        ("docs/attention.md", "kinds", write_kinds()),
        ("docs/parallel.md", "parallel", write_parallel()),
        ("docs/parallel.md", "trade", write_trade()),
        ("docs/images.md", "images", write_fields(ImageSettings)),
        ("docs/images.md", "augmentation", write_presets()),
        ("docs/images.md", "speed", write_images_speed()),
        ("docs/training-speed.md", "steps", training_tables.write_steps()),
        ("docs/training-speed.md", "curves", training_tables.write_curves()),
        ("docs/training-speed.md", "profile", training_tables.write_profile()),
        ("docs/training-speed.md", "cpu", training_tables.write_cpu()),
        ("docs/page.md", "speed of the page", write_page()),
    ):
        path = ROOT / name
        old = path.read_text("utf-8")
        pattern = re.compile(rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)", re.S)
        new = pattern.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", old)
        if new != old:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(new, "utf-8")
    if "--check" in sys.argv and stale:
        sys.exit(f"{', '.join(stale)}: not up to date; run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
