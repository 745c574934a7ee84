"""How fast the server answers, and its page."""

from .markdown import begin_sentence, cite, paragraphs, table
from .results import Result


def write_serving(result: Result) -> str:
    rows = []
    for name, key in (("in batches", "batching"), ("one by one", "without_batching")):
        found, times = result[key], result[key]["milliseconds"]
        shown = (f"{times[p]:,.0f}" for p in ("p50", "p95", "p99"))
        rows.append((name, f"{found['sentences_per_second']:,.0f}", *shown, str(found["different_answers"])))
    rows.append(("`Translator`, no server", f"{result['offline_texts_per_second']:,.0f}", "", "", "", ""))
    memory = result["memory"]["megabytes"]
    server, workers = ([one[key] for one in memory] for key in ("server", "workers"))
    return paragraphs(
        table(("", "texts/s", "p50, ms", "p95, ms", "p99, ms", "other than offline"), rows),
        f"{result['what']}; {result['model']}; {result['text']}. Statuses: "
        f"{', '.join(f'{status} ({n:,})' for status, n in result['batching']['statuses'].items())}. Over "
        f"{result['memory']['requests']:,} requests the server held {min(server)} to {max(server)} MB and its "
        f"workers {min(workers):,} to {max(workers):,} MB. {cite(result)}.",
    )


def write_page(result: Result) -> str:
    """How quickly the page shows a long sentence."""
    where = {"machine": f"{result['machine']}, {result['browser']}"}
    rows = ((name, f"{frames['mean']:.0f}", f"{frames['slow']:.0f}") for name, frames in result["frames"].items())
    return paragraphs(
        f"{begin_sentence(result['what'])}: it stands {result['seconds']:.2f} s after it is opened, the median, and "
        f"{result['slowest']:.2f} s at the slowest.",
        table(("what scrolls", "frames a second", "slowest frame in twenty"), rows),
        f"{cite(result | where)}.",
    )
