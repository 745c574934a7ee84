"""What benchmarks/croco.py found: whether the second view helps, where the attention looks, disparity."""

from .markdown import cite, paragraphs, table, without_folders
from .results import Result

SCENES = {
    "scenes": "rendered, as in training",
    "far": "rendered, cameras as far apart as they get",
    "apart": "rendered, nothing in common",
    "photographs": "crops of Middlebury's photographs",
    "photographs_apart": "such crops, nothing in common",
}
VIEWS = ("true", "shuffled", "none")
LOSSES = ("loss, true second view", "another pair's", "none")
HITS = ("peaks that hit", "own place would", "peaks of moved patches that hit")
BY_SIGHT = ("covisible: true", "another pair's", "none", "not in the second view: true", "another pair's", "none")


def write_croco(result: Result) -> str:
    """The parts that have been measured, in order."""
    writers = {"train": _write_training, "prove": _write_proof, "disparity": _write_disparity}
    parts = [write(result[part]) for part, write in writers.items() if part in result]
    if not parts:
        return ""
    commands = "".join(f"; `{without_folders(command)}`" for command in result.get("commands", []))
    return paragraphs(*parts, f"{cite(result)}{commands}.")


def _write_training(found: Result) -> str:
    steps, planned = found["steps"], found["steps_planned"]
    return (
        f"A model of {found['parameters'] / 1e6:.1f} M parameters, trained for {steps:,} "
        f"{'' if steps == planned else f'of {planned:,} planned '}steps on {found['pairs']:,} rendered pairs in "
        f"{found['seconds']:,.0f} s, {found['pairs_per_second']:,.0f} pairs a second:"
    )


def _write_proof(found: Result) -> str:
    layer = found["layer"]
    rows, by_sight = [], []
    for part, title in SCENES.items():
        if part in found:
            scores = found[part]
            shares = (scores["hits"][layer], scores["same_place"], scores["moved_hits"][layer])
            hits = (f"{share:.1%}" if scores["overlap"] else "" for share in shares)
            rows.append((title, f"{scores['pairs']:,}", f"{scores['overlap']:.0%}", *_cells(scores["losses"]), *hits))
            by_sight.append((title, *_cells(scores["covisible_losses"]), *_cells(scores["unseen_losses"])))
    return paragraphs(
        table(("pairs", "how many", "overlap", *LOSSES, *HITS), rows),
        "Losses are of masked patches, each in its own mean and deviation. A peak of the cross-attention hits where it "
        f"is the true patch or next to it; it is that of `{layer}`, which did best on scenes set aside for the choice. "
        "A patch has moved where looking at its own place is no hit.",
        "The same losses by what the second view shows of a patch, at least half of it or nothing:",
        table(("pairs", *BY_SIGHT), by_sight),
        _write_verdicts(found["shows"]),
    )


def _cells(losses: dict[str, float]) -> list[str]:
    """Losses with each second view; nothing where there was no such patch."""
    return [f"{losses[view]:.3f}" if losses else "" for view in VIEWS]


def _write_disparity(found: Result) -> str:
    runs = {name: found[name]["log"][-1] for name in ("pretrained", "scratch")}
    steps = [run["step"] for run in runs.values()]
    flat = runs["scratch"]["pixels_off_flat"]
    rows = [
        ("rendered, mean error in pixels", *(f"{run['pixels_off']:.3f}" for run in runs.values()), f"{flat:.3f}"),
        ("rendered, off by more than 1", *(f"{run['share_off_by_one']:.1%}" for run in runs.values()), ""),
    ]
    photographs = [found[name].get("photographs") for name in runs]
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
