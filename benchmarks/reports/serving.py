"""Speed of the server and of the web page."""

from .markdown import begin_sentence, cite, paragraphs, table
from .results import Result


def write_serving(result: Result) -> str:
    rows = []
    for name, key in (("with batching", "batching"), ("without batching", "without_batching")):
        found, times = result[key], result[key]["milliseconds"]
        shown = (f"{times[p]:,.0f}" for p in ("p50", "p95", "p99"))
        rows.append((name, f"{found['sentences_per_second']:,.0f}", *shown, str(found["different_answers"])))
    rows.append(("`Translator` without a server", f"{result['offline_texts_per_second']:,.0f}", "", "", "", ""))
    memory = result["memory"]["megabytes"]
    server, workers = ([one[key] for one in memory] for key in ("server", "workers"))
    return paragraphs(
        table(("", "texts/s", "p50, ms", "p95, ms", "p99, ms", "different from offline"), rows),
        f"{result['what']}; {result['model']}; {result['text']}. Statuses: "
        f"{', '.join(f'{status} ({n:,})' for status, n in result['batching']['statuses'].items())}. Over "
        f"{result['memory']['requests']:,} requests the server used {min(server)} to {max(server)} MB and its "
        f"workers {min(workers):,} to {max(workers):,} MB. {cite(result)}.",
    )


def write_page(result: Result) -> str:
    """Time to render a long sentence, and frame rates."""
    where = {"machine": f"{result['machine']}, {result['browser']}"}
    rows = ((name, f"{frames['mean']:.0f}", f"{frames['slow']:.0f}") for name, frames in result["frames"].items())
    return paragraphs(
        f"{begin_sentence(result['what'])}: rendered in {result['seconds']:.2f} s (median), "
        f"{result['slowest']:.2f} s at most.",
        table(("interaction", "frames per second", "slowest 5 % of frames"), rows),
        f"{cite(result | where)}.",
    )
