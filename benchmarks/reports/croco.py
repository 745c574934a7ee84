"""Results of benchmarks/croco.py: completion, cross-attention, disparity."""

from .markdown import cite, paragraphs, table, without_folders
from .results import Result

SCENES = {
    "scenes": "rendered, as in training",
    "far": "rendered, largest baselines",
    "apart": "rendered, no overlap",
    "photographs": "Middlebury crops",
    "photographs_apart": "Middlebury crops, no overlap",
}
VIEWS = ("true", "shuffled", "none")
LOSSES = ("loss, true second view", "another pair's", "none")
HITS = ("attention peaks correct", "same position correct", "peaks of moved patches correct")
BY_SIGHT = ("visible in both: true", "another pair's", "none", "not visible: true", "another pair's", "none")


def write_croco(result: Result) -> str:
    """The measured parts, in order."""
    writers = {"train": _write_training, "evaluate": _write_evaluation, "disparity": _write_disparity}
    parts = [write(result[part]) for part, write in writers.items() if part in result]
    if not parts:
        return ""
    commands = "".join(f"; `{without_folders(command)}`" for command in result.get("commands", []))
    return paragraphs(*parts, f"{cite(result)}{commands}.")


def _write_training(found: Result) -> str:
    return (
        f"A model of {found['parameters'] / 1e6:.1f} M parameters, trained for {found['steps']:,} steps on "
        f"{found['pairs']:,} rendered pairs in "
        f"{found['seconds']:,.0f} s, {found['pairs_per_second']:,.0f} pairs per second:"
    )


def _write_evaluation(found: Result) -> str:
    layer = found["layer"]
    rows, by_sight = [], []
    for part, title in SCENES.items():
        if part in found:
            scores = found[part]
            shares = (scores["hits"][layer], scores["same_position"], scores["moved_hits"][layer])
            hits = (f"{share:.1%}" if scores["overlap"] else "" for share in shares)
            rows.append((title, f"{scores['pairs']:,}", f"{scores['overlap']:.0%}", *_cells(scores["losses"]), *hits))
            by_sight.append((title, *_cells(scores["covisible_losses"]), *_cells(scores["unseen_losses"])))
    return paragraphs(
        table(("pairs", "number", "overlap", *LOSSES, *HITS), rows),
        "Losses are of masked patches, normalised per patch. An attention peak is correct at the true patch or next "
        f"to it; the layer is `{layer}`, chosen on separate scenes. A patch has moved if the same position is not "
        "correct.",
        "Losses by whether at least half of a patch, or nothing of it, is visible in the second view:",
        table(("pairs", *BY_SIGHT), by_sight),
        _write_criteria(found["criteria"]),
    )


def _cells(losses: dict[str, float]) -> list[str]:
    """Losses with each second view; empty if there was no such patch."""
    return [f"{losses[view]:.3f}" if losses else "" for view in VIEWS]


def _write_disparity(found: Result) -> str:
    runs = {name: found[name]["log"][-1] for name in ("pretrained", "scratch")}
    steps = [run["step"] for run in runs.values()]
    flat = runs["scratch"]["pixels_off_flat"]
    rows = [
        ("rendered, mean error in pixels", *(f"{run['pixels_off']:.3f}" for run in runs.values()), f"{flat:.3f}"),
        ("rendered, error above 1 pixel", *(f"{run['share_off_by_one']:.1%}" for run in runs.values()), ""),
    ]
    photographs = [found[name].get("photographs") for name in runs]
    if all(photographs):
        rows += [
            ("photographs, mean error in pixels", *(f"{one['pixels_off']:.2f}" for one in photographs if one), ""),
            ("photographs, error above 1 pixel", *(f"{one['share_off_by_one']:.1%}" for one in photographs if one), ""),
        ]
    return paragraphs(
        f"Disparity after {' and '.join(f'{step:,}' for step in dict.fromkeys(steps))} steps:",
        table(("disparity", "pretrained", "random initialisation", "best constant"), rows),
        _write_criteria(found["criteria"]),
    )


def _write_criteria(criteria: dict[str, bool]) -> str:
    """The criteria that were met and those that were not."""
    answers = {
        "Criteria met": [criterion for criterion, met in criteria.items() if met],
        "Criteria not met": [criterion for criterion, met in criteria.items() if not met],
    }
    return " ".join(f"{title}: {'; '.join(found)}." for title, found in answers.items() if found)
