"""What benchmarks/croco.py found: whether the second view helps, where the attention looks, disparity."""

from .markdown import cite, paragraphs, table, without_folders
from .results import Result

SCENES = {
    "scenes": "rendered, as in training",
    "far": "rendered, cameras as far apart as they get",
    "apart": "rendered, nothing in common",
    "photographs": "crops of Middlebury's photographs",
}
HEADS = ("pairs", "how many", "overlap", "loss, true second view", "another pair's", "none", "peaks that hit")


def write_croco(result: Result) -> str:
    """The parts that have been measured, in order."""
    writers = {"train": _write_training, "prove": _write_proof, "disparity": _write_disparity}
    parts = [write(result[part]) for part, write in writers.items() if part in result]
    if not parts:
        return ""
    commands = "".join(f"; `{without_folders(command)}`" for command in result.get("commands", []))
    return paragraphs(*parts, f"{cite(result)}{commands}.")


def _write_training(found: Result) -> str:
    steps, planned = found["log"][-1]["step"], found["steps"]  # a run that is stopped has been validated before
    pairs = found["pairs"] // planned * steps
    return (
        f"A model of {found['parameters'] / 1e6:.1f} M parameters, trained for {steps:,} "
        f"{'' if steps == planned else f'of {planned:,} planned '}steps on {pairs:,} rendered pairs in "
        f"{found['seconds']:,.0f} s, {found['pairs_per_second']:,.0f} pairs a second:"
    )


def _write_proof(found: Result) -> str:
    layer = found["layer"]
    rows = []
    for part, title in SCENES.items():
        if part in found:
            scores = found[part]
            losses = (f"{scores['losses'][view]:.3f}" for view in ("true", "shuffled", "none"))
            shares = (scores["hits"][layer], scores["same_place"])
            hits = (f"{share:.1%}" if scores["overlap"] else "" for share in shares)
            rows.append((title, f"{scores['pairs']:,}", f"{scores['overlap']:.0%}", *losses, *hits))
    return paragraphs(
        table((*HEADS, "own place would"), rows),
        "Losses are of masked patches, each in its own mean and deviation. A peak of the cross-attention hits where it "
        f"is the true patch or next to it; it is that of `{layer}`, which did best on scenes set aside for the choice.",
        _write_verdicts(found["shows"]),
    )


def _write_disparity(found: Result) -> str:
    runs = {name: found[name][-1] for name in ("pretrained", "scratch")}
    steps = [run["step"] for run in runs.values()]
    flat = runs["scratch"]["pixels_off_flat"]
    rows = [
        ("rendered, mean error in pixels", *(f"{run['pixels_off']:.3f}" for run in runs.values()), f"{flat:.3f}"),
        ("rendered, off by more than 1", *(f"{run['share_off_by_one']:.1%}" for run in runs.values()), ""),
    ]
    photographs = [found.get(f"{name}_photographs") for name in runs]
    if all(photographs):
        rows += [
            ("photographs, mean error in pixels", *(f"{one['pixels_off']:.2f}" for one in photographs if one), ""),
            ("photographs, off by more than 1", *(f"{one['share_off_by_one']:.1%}" for one in photographs if one), ""),
        ]
    return paragraphs(
        f"Disparity after {' and '.join(f'{step:,}' for step in dict.fromkeys(steps))} steps:",
        table(("disparity", "from these weights", "from random ones", "the best single disparity"), rows),
        _write_verdicts(found["shows"]),
    )


def _write_verdicts(shows: dict[str, bool]) -> str:
    """What was asked beforehand, by what came of it."""
    answers = {
        "Asked beforehand and shown": [what for what, shown in shows.items() if shown],
        "Asked beforehand and not shown": [what for what, shown in shows.items() if not shown],
    }
    return " ".join(f"{title}: {'; '.join(found)}." for title, found in answers.items() if found)
