"""Speed of the web page with a long sentence: time until the attention section is rendered, and frame rates.

    python benchmarks/web_page.py runs/demo --tokens 512 --out benchmarks/results/web-page.json

SENTENCE is repeated up to the given number of tokens and translated, which is not timed. Then the section is opened in
Chromium and its scrollable parts are scrolled frame by frame. Then every section is opened, and the time from the last
answer of the server to the complete view is measured. Fails, after writing the result, if the section takes longer than
MAX_SECONDS, a part scrolls at less than MIN_FRAMES per second, or a view takes longer than MAX_VIEW_SECONDS.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import environment, save_result

from regard.data.text.tokenizer import Vocabularies
from regard.models.folder import find_model_folder
from tests.browser import Visit, launch_chromium

SENTENCE = "Yesterday my older brother bought three books at the market and read them on the train."
WORDS = SENTENCE.rstrip(".").split()  # one sentence, which the page does not divide
MAX_SECONDS, MIN_FRAMES, MAX_VIEW_SECONDS = 2.0, 30.0, 1.0
SECTIONS = ("overview", "translate", "attention", "why", "arithmetic", "beam", "change", "positions", "training")
WATCH = """() => {
  performance.clearResourceTimings();
  performance.setResourceTimingBufferSize(1000);
  window.clickedAt = performance.now(); // for views whose answers are cached
  window.shownAt = new Promise((resolve) => {
    const observer = new MutationObserver(() => {
      if (!document.documentElement.dataset.ready) return;
      observer.disconnect();
      requestAnimationFrame(() => requestAnimationFrame((now) => resolve(now)));
    });
    observer.observe(document.documentElement, { attributeFilter: ["data-ready"] });
  });
}"""
DRAWN = """async () => {
  const shown = await window.shownAt;
  const answers = performance.getEntriesByType("resource").filter(({ name }) => name.includes("/api/"));
  return (shown - Math.max(window.clickedAt, ...answers.map(({ responseEnd }) => responseEnd))) / 1000;
}"""
SCROLL = """([selector, frames]) => new Promise((resolve) => {
  const element = document.querySelector(selector);
  const times = [];
  const step = (now) => {
    times.push(now);
    const height = element.scrollHeight - element.clientHeight;
    element.scrollTop = height * Math.abs(Math.sin(times.length / 20));
    element.scrollLeft = (element.scrollWidth - element.clientWidth) * Math.abs(Math.sin(times.length / 30));
    if (times.length <= frames) requestAnimationFrame(step);
    else resolve([times.slice(1).map((time, i) => time - times[i]), height]);
  };
  requestAnimationFrame(step);
})"""
POINT = """([selector, frames]) => new Promise((resolve) => {
  const canvas = document.querySelector(selector);
  const times = [];
  const step = (now) => {
    times.push(now);
    const box = canvas.getBoundingClientRect();
    const at = { clientX: box.left + 130 + 3 * times.length, clientY: box.top + 130 + 3 * times.length, bubbles: true };
    canvas.dispatchEvent(new PointerEvent("pointermove", at));
    if (times.length <= frames) requestAnimationFrame(step);
    else resolve([times.slice(1).map((time, i) => time - times[i]), 1]);
  };
  requestAnimationFrame(step);
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sentence = make_sentence(options.run, options.tokens)
    words = ["serve", f"long={options.run}", "--port", "0", "--limit", "deadline=300"]
    command = [sys.executable, "-m", "regard", *words]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        with launch_chromium() as browser:
            measured = measure(browser, wait_for(server), sentence, options.times)
    finally:
        server.terminate()
        server.wait()
    report = {
        "what": f"a sentence of {options.tokens} tokens in the attention section",
        **measured,
        **environment("cpu", "playwright"),
    }
    print(json.dumps(report, indent=1))
    if options.out:
        save_result(report, options.out)
    if failures := find_failures(report):
        sys.exit("; ".join(failures))


def find_failures(report: dict[str, Any]) -> list[str]:
    """Bounds that are missed, one sentence each."""
    failures = []
    if report["slowest"] > MAX_SECONDS:
        failures.append(f"the section took {report['slowest']} s, more than {MAX_SECONDS:g} s")
    for name, frames in report["frames"].items():
        if frames["mean"] < MIN_FRAMES:
            failures.append(f"{name}: {frames['mean']} frames per second, below {MIN_FRAMES:g}")
    for name, seconds in report["views"].items():
        if seconds > MAX_VIEW_SECONDS:
            failures.append(f"{name}: {seconds} s after the answer, more than {MAX_VIEW_SECONDS:g} s")
    if "lines" not in report["frames"]:
        failures.append("the lines are too small to scroll; use more tokens")
    return failures


def make_sentence(run: Path, tokens: int) -> str:
    """A sentence of at most this number of tokens."""
    tokenizer = Vocabularies.load(find_model_folder(run)).source
    words: list[str] = []
    while len(tokenizer.encode(" ".join([*words, WORDS[len(words) % len(WORDS)]]))) <= tokens:
        words.append(WORDS[len(words) % len(WORDS)])
    return " ".join(words)


def wait_for(server: subprocess.Popen[str]) -> str:
    """Wait until the server is ready and return its address."""
    assert server.stderr is not None
    url = ""
    for line in server.stderr:
        if found := re.search(r'"url": "([^"]+)"', line):
            url = found[1]
        if '"event": "ready"' in line:
            return url
    raise SystemExit("the server exited")


def measure(browser: Any, url: str, sentence: str, times: int) -> dict[str, Any]:
    """Median and maximum seconds, and frames per second."""
    seconds = []
    with Visit(browser, viewport={"width": 1400, "height": 900}) as visit:
        page = visit.page

        def ready(name: str) -> None:
            page.wait_for_selector(f"html[data-ready={name}]", state="attached", timeout=300_000)

        page.goto(url)
        ready("translate")
        page.locator("#text").fill(sentence)
        page.evaluate("document.documentElement.removeAttribute('data-ready')")
        page.keyboard.press("Enter")
        ready("translate")
        if page.locator(".choice").count():  # the server splits sentences above its limit; the views show all of it
            page.evaluate("document.documentElement.removeAttribute('data-ready')")
            page.locator(".choice").last.click()
            ready("translate")
        for _ in range(times):
            page.locator("[data-section=positions]").click()
            ready("positions")
            began = time.perf_counter()
            page.locator("[data-section=attention]").click()
            ready("attention")
            seconds.append(time.perf_counter() - began)
        page.get_by_role(
            "button", name="encoder.0.attention, head 0"
        ).click()  # the largest map: all tokens against all tokens
        page.wait_for_timeout(2000)
        frames = {
            "matrix": page.evaluate(SCROLL, [".picture.wide", 120]),
            "lines": page.evaluate(SCROLL, [".picture.narrow", 120]),
            "overview": page.evaluate(SCROLL, [".overview", 120]),
            "page": page.evaluate(SCROLL, ["html", 120]),
            "pointing": page.evaluate(POINT, ["canvas.matrix", 60]),
        }
        views = {}
        for name in SECTIONS:
            page.evaluate(WATCH)
            page.locator(f"[data-section={name}]").click()
            ready(name)
            views[name] = round(page.evaluate(DRAWN), 3)
        assert not visit.console, visit.console
    return {
        "views": views,
        "browser": f"Chromium {browser.version}",
        "seconds": round(statistics.median(seconds), 3),
        "slowest": round(max(seconds), 3),
        "frames": {name: count_frames(gaps) for name, (gaps, height) in frames.items() if height},
    }


def count_frames(gaps: list[float]) -> dict[str, float]:
    """Mean frames per second, and the rate of the slowest 5 % of frames."""
    return {
        "mean": round(1000 / statistics.mean(gaps), 1),
        "slow": round(1000 / sorted(gaps)[int(0.95 * len(gaps))], 1),
    }


if __name__ == "__main__":
    main()
