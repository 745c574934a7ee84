"""Addresses of the page: a link shows the same view in another browser, and the history steps through views."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.serving.page import DESKTOP, KEY, Page, open_page

SNAPSHOT = """() => {
  const shown = (element) => element.checkVisibility();
  const panel = document.getElementById("panel");
  const controls = [...document.querySelectorAll("#model, #text, #panel select, #panel input, #panel textarea")];
  const canvases = [...panel.querySelectorAll("canvas")].filter((canvas) => shown(canvas) && !canvas.closest(".cell"));
  return {
    section: document.documentElement.dataset.ready,
    text: panel.innerText,
    chosen: [...document.querySelectorAll(".choice[aria-pressed=true]")].map((choice) => choice.textContent),
    pressed: [...panel.querySelectorAll("[aria-pressed=true]")].map((button) => button.textContent),
    controls: controls.map((control) => (control.type === "checkbox" ? control.checked : control.value)),
    pictures: canvases.map((canvas) => canvas.toDataURL()),
    notice: document.getElementById("notice").textContent,
  };
}"""


def snapshot(page: Page) -> dict[str, Any]:
    """Return what the page shows when it no longer changes, without the readout of the pointer."""
    page.page.mouse.move(0, 0)
    page.page.evaluate("document.activeElement.blur()")
    shots: list[dict[str, Any]] = []

    def is_settled() -> bool:
        page.page.wait_for_timeout(50)
        shots.append(page.page.evaluate(SNAPSHOT))
        busy = page.page.locator("#panel").get_attribute("aria-busy")
        return busy != "true" and len(shots) > 1 and shots[-1] == shots[-2]

    page.wait_until(is_settled)
    return shots[-1]


def show_second_translation(page: Page) -> None:
    page.enter("You buy tea", "translate")
    page.page.locator(".alternative").nth(1).click()


def show_explanations_of_two_models(page: Page) -> None:
    page.open("why")
    page.page.locator("#second").select_option("narrow")
    questions = page.page.locator(".why-question")
    page.wait_until(lambda: questions.count() == 2)
    page.page.locator(".column").nth(1).locator(".tokens.target .token").first.click()
    page.wait_until(lambda: questions.first.text_content() == "Why 我?")


def show_all_as_one_sequence(page: Page) -> None:
    page.enter("I love apples\nYou buy tea", "translate")
    page.open("beam")
    page.click("All as one sequence")
    page.wait_until_ready("beam")


def show_scores_of_a_head(page: Page) -> None:
    page.open("attention")
    page.click("decoder.0.attention, head 1")
    page.page.locator(".controls select").first.select_option("scores")
    page.wait_until(lambda: page.text(".head-panel .hint").startswith("scores"))


def show_compared_heads(page: Page) -> None:
    page.open("attention")
    page.page.locator(".compare").click()
    page.page.wait_for_selector(".comparisons > div:nth-child(1) .head-title:not(:empty)")
    page.page.locator(".comparisons select").nth(2).select_option("1")
    page.wait_until(lambda: "mean" in page.text(".comparisons .head-title"))


def show_a_step_of_the_arithmetic(page: Page) -> None:
    page.open("arithmetic")
    page.page.get_by_label("Query").select_option("2")
    page.wait_until(lambda: "query=2" in page.page.url)
    page.page.locator(".controls select").first.select_option("encoder.1.attention")
    page.wait_until(lambda: "encoder.1" in page.page.url)
    page.page.wait_for_timeout(300)
    page.page.locator(".steps button").nth(4).click()


def show_an_earlier_step_of_a_narrow_beam(page: Page) -> None:
    page.open("beam")
    page.page.get_by_label("Beam width").select_option("3")
    page.wait_until(lambda: page.page.locator(".tree .node.kept").count() < 12)
    page.click("First step")
    page.click("Next step")


def show_an_iteration(page: Page) -> None:
    page.enter("They want tea and dogs", "translate")
    page.select_model("nat", "translate")
    page.open("beam")
    page.page.get_by_role("combobox", name="Iterations").select_option("2")
    page.wait_until(lambda: page.page.locator("table.iterations tr").count() == 2)
    page.click("First step")


def show_ablated_heads_and_another_text(page: Page) -> None:
    page.open("change")
    for head in (0, 1):
        page.click(f"decoder.0.cross, head {head}", exact=True)
    page.page.locator(".section textarea").fill("I love tea")
    page.page.wait_for_selector(".line.differs")


def show_a_patch_of_an_image(page: Page) -> None:
    page.select_model("paint", "image")
    page.page.locator(".example").first.click()
    for patch in (0, 1):
        page.page.locator(".rollout canvas").focus()
        page.page.keyboard.press("ArrowRight")
        page.wait_until(lambda patch=patch: f"patch={patch}" in page.page.url)
        page.wait_until(lambda: page.page.evaluate("document.activeElement.closest('.rollout')"))


VIEWS = [
    show_second_translation,
    show_explanations_of_two_models,
    show_all_as_one_sequence,
    show_scores_of_a_head,
    show_compared_heads,
    show_a_step_of_the_arithmetic,
    show_an_earlier_step_of_a_narrow_beam,
    show_an_iteration,
    show_ablated_heads_and_another_text,
    show_a_patch_of_an_image,
]


@pytest.mark.parametrize("show", VIEWS, ids=lambda show: show.__name__.removeprefix("show_"))
def test_link_shows_the_same_view_in_another_browser(page: Page, browser: Any, show: Callable[[Page], None]) -> None:
    first = snapshot(page)
    show(page)
    expected = snapshot(page)
    assert expected != first
    with open_page(browser, page.page.url, **DESKTOP) as other:
        assert snapshot(other) == expected
        assert other.page.url == page.page.url


def test_back_and_forward_step_through_views(page: Page) -> None:
    page.open("arithmetic")
    page.page.get_by_role("combobox", name="Head").select_option("1")
    page.wait_until(lambda: "head=1" in page.page.url)
    page.enter("You buy tea", "arithmetic")
    page.open("positions")
    page.page.go_back()
    page.wait_until_ready("arithmetic")
    assert page.page.locator("#text").input_value() == "You buy tea"
    page.page.go_back()
    page.wait_until(lambda: page.page.locator("#text").input_value() == "I love apples")
    page.wait_until_ready("arithmetic")
    page.wait_until(lambda: page.page.get_by_role("combobox", name="Head").input_value() == "1")
    page.page.go_back()
    page.wait_until(lambda: page.page.get_by_role("combobox", name="Head").input_value() == "0")
    page.page.go_back()
    page.wait_until_ready("translate")
    for _ in range(4):
        page.page.go_forward()
    page.wait_until_ready("positions")
    assert page.page.locator("#text").input_value() == "You buy tea"


BAD_LINKS = [
    ("translate?model=gone&text=I+love+tea", "translate", "does not serve; toy is shown"),
    ("attention?model=toy&name=decoder.1.cross&head=64", "attention", "head 64, but there are only 0 to 2"),
    ("attention?model=toy&name=decoder.9.cross", "attention", "“decoder.9.cross”, which this model does not have"),
    ("arithmetic?query=900&head=-1", "arithmetic", "head = “-1”, which is not a valid value"),
    ("arithmetic?query=900&name=__proto__", "arithmetic", "query 900, but there are only 0 to"),
    ("beam?step=77&beam=99&length_penalty=%00", "beam", "step 77"),
    ("change?factors=decoder.0.cross/9*0,x/1*0", "change", "“decoder.0.cross/9”"),
    ("change?factors=%3Cscript%3E", "change", "factors = “<script>”"),
    ("translate?sentence=5&text=I+love+tea", "translate", "sentence 5"),
    ("translate?text=%E0%A4%A&sentence=x&hypothesis=88", "translate", "hypothesis 88"),
    ("nowhere?text=I+love+tea", "translate", "section “nowhere”"),
    ("image?model=toy", "image", ""),
    ("??&&==#", "translate", ""),
]


def test_bad_links_are_explained(page: Page) -> None:
    for fragment, section, notice in BAD_LINKS:
        page.page.evaluate("document.documentElement.removeAttribute('data-ready')")
        page.page.evaluate("(fragment) => { location.hash = fragment; }", f"#{fragment}")
        page.wait_until_ready(section)
        assert notice in page.text("#notice"), fragment
        assert page.page.locator("#notice").is_visible() == bool(notice), fragment
        assert page.page.locator("#error").is_hidden()
        assert page.page.locator("#panel .card").first.is_visible()


def test_link_is_copied(page: Page) -> None:
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.open("beam")
    page.click("Copy link")
    page.page.get_by_text("Link copied").wait_for()
    assert page.page.evaluate("navigator.clipboard.readText()") == page.page.url
    page.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('forbidden')); }")
    page.open("translate")
    page.click("Copy link")
    assert page.page.get_by_label("Address of this view").input_value() == page.page.url


def test_language_and_theme_are_kept(page: Page) -> None:
    page.page.locator("#language").click()
    page.page.locator("#theme").click()
    page.wait_until_ready("translate")
    page.page.goto(page.url)
    page.wait_until_ready("translate")
    assert page.page.evaluate("document.documentElement.lang") == "zh-CN"
    assert page.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_page_works_if_the_browser_forbids_storage(browser: Any, page_url: str) -> None:
    forbid = """for (const name of ["localStorage", "sessionStorage"]) {
      Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
    }"""
    with open_page(browser, page_url, forbid, **DESKTOP) as page:
        page.page.wait_for_selector("#unlock:not([hidden])")
        page.page.locator("#key").fill(KEY)
        page.click("Unlock")
        page.page.locator(".translation").wait_for()
        page.page.locator("#language").click()
        page.page.get_by_role("button", name="复制链接").wait_for()
        page.page.locator("#theme").click()
        page.wait_until_ready("translate")
        page.forgive_failed_requests()
