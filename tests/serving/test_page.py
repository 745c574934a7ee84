"""The page in a real browser, with a server that has one model of each kind."""

import csv
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from regard import Translator
from regard.serving.errors import Reason
from tests.browser import Visit
from tests.inspection.test_page_in_browser import is_drawn
from tests.serving.page import DESKTOP, KEY, Page, open_page, to_number

MARKUP = '<script>alert(1)</script><b>I</b> love <img src=x onerror=alert(2)> apples & "tea"'
TEXT_SECTIONS = ["overview", "translate", "attention", "why", "arithmetic", "beam", "change", "positions"]

# Translation


def test_sentences_of_a_text_are_translated_and_one_is_chosen(page: Page, trained_run: Path) -> None:
    assert page.page.locator("#sentences").is_hidden()
    text = "I love apples\nYou buy tea\nThey want dogs"
    page.enter(text, "translate")
    choices = page.page.locator("#sentences .choice")
    assert choices.all_text_contents() == [
        "1  I love apples",
        "2  You buy tea",
        "3  They want dogs",
        "All as one sequence",
    ]
    assert page.text(".translation.whole") == "我喜欢苹果\n你买茶\n他们要狗"
    assert page.text(".translation:not(.whole)") == "我喜欢苹果"
    page.click("2 You buy tea")
    page.wait_until(lambda: page.text(".translation:not(.whole)") == "你买茶")
    assert page.text(".translation.whole") == "我喜欢苹果\n你买茶\n他们要狗"
    assert page.page.locator(".choice[aria-pressed=true]").all_text_contents() == ["2  You buy tea"]
    page.open("beam")
    assert page.text(".translation") == "你买茶"
    page.open("change")
    assert page.text(".tokens.target").removesuffix("END").endswith("买茶")
    page.open("translate")
    page.click("All as one sequence")
    whole = Translator.load(trained_run)(text, split=False)
    page.wait_until(lambda: page.page.locator(".translation").all_text_contents() == [whole])
    page.enter("You buy tea", "translate")
    assert page.page.locator("#sentences").is_hidden()
    assert page.page.locator(".translation").all_text_contents() == ["你买茶"]


def test_long_sentences_are_marked(page: Page) -> None:
    long = "I love apples " + "and tea " * 10
    page.enter(f"I love apples\n{long}", "translate")
    assert ["⚠" in text for text in page.page.locator(".choice").all_text_contents()] == [False, True, False]
    assert page.text("#sentences .warning").startswith("A sentence is longer than the longest training source (")
    page.enter(long, "translate")
    assert page.page.locator(".choice").count() == 0
    assert page.page.locator("#sentences .warning").is_visible()


def test_translation_shows_alternatives_and_weights_of_a_token(page: Page) -> None:
    assert page.text(".translation") == "我喜欢苹果"
    page.enter("You buy tea", "translate")
    assert page.text(".translation") == "你买茶"
    scores = [to_number(score) for score in page.page.locator(".alternative .score").all_text_contents()]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    page.page.locator(".tokens.target .token").last.focus()
    assert "probability" in page.text(".readout")
    assert "tea" in page.text(".readout")
    page.page.locator(".alternative").nth(1).click()
    alternative = page.page.locator(".alternative span:last-child").nth(1).text_content()
    assert page.text(".translation") == alternative != "你买茶"


def test_unsubmitted_text_is_used_by_the_next_section_and_blank_text_is_rejected(page: Page) -> None:
    page.open("beam")
    page.page.locator("#text").fill("I love tea")
    page.open("change")
    assert page.text(".line .tokens") == "我喜欢茶END"
    page.page.locator("#text").fill("  ")
    page.click("Translate", exact=True)
    page.wait_until(lambda: page.page.locator(".unavailable").count())
    assert page.text(".unavailable") == "Enter a sentence."


def test_address_selects_a_section_and_reloading_keeps_model_and_sentence(page: Page) -> None:
    page.enter("You buy tea", "translate")
    page.select_model("narrow", "translate")
    page.page.evaluate("location.hash = '#beam'")
    page.wait_until_ready("beam")
    page.page.reload()
    page.wait_until_ready("beam")
    assert page.page.locator("#model").input_value() == "narrow"
    assert page.page.locator("#text").input_value() == "You buy tea"


def test_markup_is_shown_as_text_in_all_sections(page: Page) -> None:
    page.enter(MARKUP, "translate")
    for section in TEXT_SECTIONS:
        page.open(section)
        assert page.page.locator("b, img, main script").count() == 0
    assert "<script>" in page.page.locator("#text").input_value()
    assert page.page.locator("script").count() == 1


# Attention


def test_heads_are_shown_as_thumbnails_and_can_be_compared(page: Page) -> None:
    page.open("attention")
    assert page.page.locator(".cell").count() == 6 * (2 + 1)
    assert is_drawn(page.page, ".head-panel canvas.matrix")
    page.click("decoder.0.attention, head 1")
    page.wait_until(lambda: page.text(".head-title") == "toy · decoder.0.attention · head 1")
    weights = page.page.locator("canvas.matrix").first.screenshot()
    page.page.locator(".controls select").first.select_option("scores")
    page.wait_until(lambda: page.text(".legend span") != "0")
    assert page.page.locator("canvas.matrix").first.screenshot() != weights
    titles = page.page.locator(".head-title")
    expected_titles = [f"{name} · decoder.0.attention" for name in ("narrow", "nat", "graph")]
    expected_titles.append("toy · decoder.0.attention · mean")
    for number, title in enumerate(expected_titles, 1):
        page.page.locator(".compare").click()
        page.page.wait_for_selector(f".comparisons > div:nth-child({number}) .head-title:not(:empty)")
        assert titles.nth(number).text_content().startswith(title)
    page.page.get_by_label("Remove").first.click()
    assert page.page.locator(".head-panel").count() == 4


def test_failed_comparison_shows_an_error_and_can_be_removed(page: Page) -> None:
    page.open("attention")

    def reject(route: Any) -> None:
        is_narrow = route.request.post_data_json["model"] == "narrow"
        route.fulfill(status=400, json={"error": "no such sentence"}) if is_narrow else route.fallback()

    page.page.route("**/api/inspect/attention", reject)
    page.page.locator(".compare").click()
    page.page.wait_for_selector(".comparisons .error")
    assert page.text(".comparisons .error") == "narrow: no such sentence"
    page.click("Remove")
    assert page.page.locator(".comparisons > div").count() == 0
    page.forgive_failed_requests()


def test_mean_over_heads_is_not_available_for_scores(page: Page) -> None:
    page.open("attention")
    quantity = page.page.locator(".controls select").first
    quantity.select_option("scores")
    page.wait_until(lambda: page.text(".head-panel .hint").startswith("scores"))
    page.click("decoder.0.attention, mean")
    page.wait_until(lambda: page.text(".head-panel .hint").startswith("weights"))
    assert quantity.input_value() == "weights"
    assert quantity.locator("option[value=scores]").is_disabled()


def test_arithmetic_steps_show_the_results_of_the_model(page: Page) -> None:
    page.open("arithmetic")
    steps = page.page.locator(".steps button")
    formula = page.text(".formula")
    assert "x̂·W_Q" in formula and "h·W_K" in formula and "h·W_V" in formula  # cross-attention, with LayerNorm before it
    assert steps.all_text_contents()[7].endswith("Add")  # without LayerNorm after it
    steps.nth(1).click()
    assert "q·k" in page.text(".formula")
    steps.nth(4).click()
    cells = page.page.locator("table.arithmetic td[data-step='4'] span")
    assert sum(float(weight) for weight in cells.all_text_contents()) == pytest.approx(1, abs=5e-3)
    page.page.keyboard.press("ArrowRight")
    assert page.page.locator(".outputs > div").first.is_visible()
    page.page.keyboard.press("ArrowRight")
    assert "2 heads × 16 = 32" in page.text(".formula")
    page.page.keyboard.press("ArrowRight")
    x, y, total = map(float, re.findall(r"-?\d+\.\d+", page.text(".formula").replace("−", "-"))[:3])
    assert x + y == pytest.approx(total, abs=2e-3)
    page.page.keyboard.press("ArrowRight")
    assert re.search(r"32 → \d+ → 32", page.text(".formula"))


def test_masked_scores_are_minus_infinity(page: Page) -> None:
    page.open("arithmetic")
    page.page.locator(".controls select").first.select_option("decoder.0.attention")
    page.wait_until(lambda: page.page.locator("tr.masked").count() == 2)  # the query is the second of four tokens
    page.page.locator(".steps button").nth(4).click()
    cells = page.page.locator("tr.masked").last.locator("td")
    assert cells.nth(3).text_content() == "−∞"
    assert cells.nth(4).text_content() == "e^−∞ = 00.000"
    assert re.fullmatch(r"e\^−?\d+\.\d\d / Σ\d\.\d{3}", page.text("tbody tr:nth-child(2) .softmax"))


def test_toy_example_computes_attention(page: Page) -> None:
    page.open("arithmetic")
    cells = page.page.locator(".toy-table.weights td")
    assert cells.all_text_contents() == ["0.73", "0.27", "0.27", "0.73"]
    page.page.get_by_label("÷ √4").uncheck()
    assert cells.all_text_contents() == ["0.88", "0.12", "0.12", "0.88"]
    page.page.locator(".toy").get_by_label("Mask").check()
    assert cells.all_text_contents()[:2] == ["1", "0"]


# Search


def test_beam_search_is_shown_step_by_step(page: Page) -> None:
    page.open("beam")
    later = page.page.locator(".tree .later")
    assert later.count() == 0
    page.click("First step")
    steps = page.page.locator(".tree > g").count()
    assert later.count() == steps - 1 > 2
    page.click("Next step")
    assert later.count() == steps - 2
    page.page.locator(".tree .dropped").first.focus()
    assert "dropped" in page.text(".readout")
    assert page.page.locator(".tree .node.won").count() == 0
    for _ in range(steps):
        page.click("Next step")
    assert page.page.locator(".tree .node.won").count() == 4
    assert page.text(".translation") == "我喜欢苹果"
    page.page.locator(".controls select").first.select_option("1")
    page.wait_until(lambda: page.page.locator(".tree .node.kept").count() < 5)


def test_earlier_steps_show_outcomes_as_known_then_and_playing_pauses_at_the_translation(page: Page) -> None:
    def add_step(route: Any) -> None:
        """Add a step after the end of the best hypothesis."""
        result = route.fetch().json()
        last = result["tree"][-1]
        step = max(node["step"] for node in result["tree"]) + 1
        late = {"step": step, "parent": len(result["tree"]) - 1, "outcome": "dropped: others scored higher"}
        route.fulfill(json=result | {"tree": [*result["tree"], last | late]})

    page.page.route("**/api/inspect/beam", add_step)
    page.open("beam")
    assert page.page.get_by_label("Beam width").input_value() == "5"
    steps = page.page.locator(".tree > g")
    lost_at_end = [step.locator(".node.lost").count() for step in steps.all()]  # kept at first
    scores = [to_number(score) for score in steps.nth(1).locator(".score").all_text_contents()]
    assert scores == sorted(scores, reverse=True)
    page.click("First step")
    lost = steps.nth(0).locator(".node.lost")
    assert lost.count() < lost_at_end[0]
    page.click("Next step")
    assert lost.count() == lost_at_end[0]
    page.click("Play")
    page.wait_until(lambda: "The translation is complete at step 4" in page.text(".readout"))
    assert page.page.locator(".tree .later").count() == steps.count() - 4 == 1


def test_nat_iterations_are_shown_step_by_step(page: Page) -> None:
    page.enter("They want tea and dogs", "translate")
    page.select_model("nat", "translate")
    page.open("beam")
    rows = page.page.locator("table.iterations tr")
    later = page.page.locator("table.iterations .later")
    assert (rows.count(), later.count()) == (4, 0)
    repeated = [row.locator(".token.repeated").count() for row in rows.all()]
    assert repeated == [0, *sorted(repeated[1:], reverse=True)]
    assert repeated[1] == page.page.locator("tr:nth-child(2) s.masked-token").count() > 0
    first_tokens = rows.nth(0).locator(".token").all_text_contents()
    cells = rows.nth(1).locator("td").all()
    masked_tokens = [cell.locator("s").text_content() for cell in cells if cell.locator("s").count()]
    assert masked_tokens == [
        token for token, cell in zip(first_tokens, cells, strict=True) if cell.locator(".repeated").count()
    ]
    rows.nth(1).locator(".repeated").first.focus()
    assert "masked and predicted again" in page.text(".readout")
    page.click("First step")
    assert later.count() == 3
    page.click("Next step")
    assert later.count() == 2
    page.click("Play")
    page.wait_until(lambda: later.count() == 0)
    page.page.get_by_role("combobox", name="Iterations").select_option("2")
    page.wait_until(lambda: rows.count() == 2)
    page.page.get_by_label("Length candidates").select_option("3")
    page.wait_until(lambda: page.page.locator(".alternative").count() == 2)  # two lengths occur in training
    texts = page.page.locator(".alternative").all_text_contents()
    assert len(set(texts)) == len(texts)  # each length gives another translation


def test_graph_shows_the_path_of_the_selected_search(page: Page) -> None:
    page.enter("They want tea and dogs", "translate")
    page.select_model("graph", "translate")
    with page.page.expect_response("**/api/inspect/beam") as response:
        page.open("beam")
    graph = response.value.json()["graph"]
    nodes, buttons = page.page.locator(".graph .node"), page.page.locator(".alternative")
    assert nodes.count() == len(graph["tokens"])
    assert [path["search"] for path in graph["paths"]] == ["lookahead", "greedy", "viterbi", "beam"]
    for number, path in enumerate(graph["paths"]):
        buttons.nth(number).click()
        chosen = [i for i, node in enumerate(nodes.all()) if "won" in (node.get_attribute("class") or "")]
        assert chosen == [0, *path["vertices"]]
        assert page.page.locator(".graph .edge.won").count() == len(path["vertices"])
        assert page.text(".translation") == path["text"]
    assert page.page.locator(".alternative[aria-pressed=true]").count() == 1
    nodes.nth(0).focus()
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press("ArrowRight")
    assert page.text(".readout").startswith(f"vertex 2: {graph['tokens'][2]}")
    assert nodes.nth(2).get_attribute("aria-label") == page.text(".readout")
    assert page.page.locator(".graph [tabindex='0']").count() == 1
    with page.page.expect_download() as download:
        page.page.locator(".downloads summary").click()
        page.click("Search: CSV")
    rows = list(csv.reader(download.value.path().read_text(encoding="utf-8-sig").splitlines()))
    start = rows.index(["vertex", "token", "probability", "on paths", *(path["search"] for path in graph["paths"])])
    assert [row[1] for row in rows[start + 1 :][: len(graph["tokens"])]] == graph["tokens"]
    page.page.get_by_label("Beam width").select_option("2")
    page.wait_until(lambda: page.text(".alternative .hint").startswith("beam search"))


def test_changed_heads_and_texts_change_the_translation(page: Page) -> None:
    with page.page.expect_request(lambda request: "factors" in (request.post_data or "")) as changed:
        page.open("change")
    assert set(changed.value.post_data_json["search"].values()) == {None}  # the settings of the server
    lines = page.page.locator(".line .tokens")
    assert lines.nth(0).text_content() == lines.nth(1).text_content() == "我喜欢苹果END"
    for name in ("decoder.0.cross", "decoder.1.cross"):
        for head in (0, 1):
            page.click(f"{name}, head {head}", exact=True)
    page.page.wait_for_selector(".line.differs .token.changed")
    assert lines.nth(0).text_content() == "我喜欢苹果END" != lines.nth(1).text_content()
    page.click("Reset")
    page.wait_until_ready("change")
    assert page.page.locator(".line.differs").count() == 0
    page.page.locator(".section textarea").fill("I love tea")
    page.page.wait_for_selector(".line.differs")
    assert lines.nth(1).text_content() == "我喜欢茶END"


# Positions and images


def test_position_encodings_are_drawn(page: Page) -> None:
    page.open("positions")
    assert page.page.locator("figure canvas").count() >= 2
    assert is_drawn(page.page, "figure canvas")
    page.select_model("views", "positions")
    assert is_drawn(page.page, ".dials canvas")


def test_dropped_image_is_classified_and_patches_can_be_selected(page: Page, painted: Path) -> None:
    page.select_model("paint", "image")
    data = list((painted / "test" / "red" / "004.png").read_bytes())
    page.page.evaluate(
        """(bytes) => {
          const files = new DataTransfer();
          files.items.add(new File([new Uint8Array(bytes)], "<b>red</b>.png", {type: "image/png"}));
          const event = new DragEvent("drop", {dataTransfer: files, bubbles: true});
          document.querySelector(".drop-zone").dispatchEvent(event);
        }""",
        data,
    )
    page.page.wait_for_selector(".class")
    assert page.text(".class span") == "red"
    assert page.text(".drop-zone .hint") == "<b>red</b>.png"
    assert is_drawn(page.page, ".rollout canvas")
    assert page.page.locator(".thumbnails canvas").count() > 1
    page.page.locator(".rollout canvas").click(position={"x": 100, "y": 100})
    page.page.get_by_role("button", name="Whole image").wait_for()


def test_swin_patch_attends_only_within_its_window(page: Page, painted: Path) -> None:
    page.select_model("windows", "image")
    page.page.locator(".drop-zone input").set_input_files(painted / "test" / "blue" / "004.png")
    page.page.wait_for_selector(".windows canvas")
    assert page.text(".class span") == "blue"
    assert "rollout" in page.text(".card > .hint")
    layers = page.page.get_by_label("layer")
    assert layers.locator("option").count() == 4
    layers.select_option("0")
    all_patches = page.page.locator(".windows canvas").screenshot()
    page.page.locator(".windows canvas").click(position={"x": 300, "y": 20})
    page.page.get_by_role("button", name="Whole image").wait_for()
    assert page.page.locator(".windows canvas").screenshot() != all_patches
    # The image has 8 × 8 patches; the window of the selected patch covers 2 × 2 of them at the top right.
    brightness = page.page.evaluate(
        """() => {
          const canvas = document.querySelector(".windows canvas");
          const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const pixel = (x, y) => data.slice(4 * (y * width + x), 4 * (y * width + x) + 3);
          const centre = (index) => Math.round(((index + 0.5) * width) / 8);
          return [[6, 0], [7, 1], [5, 0], [6, 2], [0, 7]].map(([x, y]) => Math.max(...pixel(centre(x), centre(y))));
        }"""
    )
    assert min(brightness[:2]) > 2 * max(brightness[2:])
    page.page.locator(".thumbnails .cell").nth(1).click()
    assert "head 0" in page.text(".windows h3")


def test_patch_of_the_first_view_selects_the_map_of_the_second(page: Page, painted: Path) -> None:
    page.select_model("views", "image")
    for number, colour in enumerate(("red", "blue")):
        page.page.locator(".drop-zone input").nth(number).set_input_files(painted / "test" / colour / "004.png")
    page.page.wait_for_selector(".second canvas")
    before = page.page.locator(".second canvas").screenshot()
    page.page.locator(".first canvas").click(position={"x": 10, "y": 300})
    assert page.page.locator(".second canvas").screenshot() != before


def test_file_dropped_outside_of_a_drop_zone_does_not_replace_the_page(page: Page) -> None:
    default_actions = page.page.evaluate(
        """() => ["dragover", "drop"].map((name) => {
          const files = new DataTransfer();
          files.items.add(new File(["x"], "x.png", {type: "image/png"}));
          const init = {dataTransfer: files, bubbles: true, cancelable: true};
          return document.body.dispatchEvent(new DragEvent(name, init));
        })"""
    )
    assert default_actions == [False, False]


# Models, languages and errors


def test_unsupported_sections_explain_why(page: Page) -> None:
    page.open("image")
    assert "toy is a text model" in page.text(".unavailable")
    page.select_model("no-tokenizer", "positions")
    for section in ("translate", "attention", "beam"):
        page.open(section)
        assert "no-tokenizer has no tokenizer" in page.text(".unavailable")
    page.select_model("paint", "image")
    page.open("translate")
    assert "paint is an image classifier" in page.text(".unavailable")


def test_language_theme_and_keyboard_navigation(page: Page) -> None:
    page.open("attention")
    page.page.locator("#language").click()
    page.wait_until_ready("attention")
    assert page.text("[data-section=attention]") == "注意力"
    assert "层" in page.text(".overview")
    assert page.page.evaluate("document.documentElement.lang") == "zh-CN"
    light = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.page.locator("#theme").click()
    page.wait_until_ready("attention")
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.page.locator("[data-section=attention]").focus()
    page.page.keyboard.press("ArrowRight")
    page.wait_until_ready("why")
    assert page.page.evaluate("document.activeElement.dataset.section") == "why"


def test_sections_fit_the_width_of_a_phone(browser: Any, page_url: str) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "locale": "zh-CN", "has_touch": True, "color_scheme": "dark"}
    with open_page(browser, page_url, **phone) as page:
        for section in [*TEXT_SECTIONS, "image"]:
            page.open(section)
            content_width, window_width = page.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert content_width <= window_width, section


def test_closing_a_section_cancels_its_requests(page: Page) -> None:
    with page.page.expect_request("**/api/inspect/attention"):
        page.page.route("**/api/inspect/attention", lambda route: None)  # never answered
        page.page.locator("[data-section=attention]").click()
    requests_before = len(page.visit.requests)
    with page.page.expect_event("requestfailed", lambda request: request.url.endswith("/api/inspect/attention")):
        page.open("positions")
    requests = [url for url in page.visit.requests[requests_before:] if "/api/" in url]
    assert requests == [f"{page.url}/api/inspect/positions"]


def test_inline_scripts_are_forbidden(page: Page) -> None:
    policy = page.page.request.get(page.url).headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    violated = page.page.evaluate(
        """() => new Promise((resolve) => {
          document.addEventListener("securitypolicyviolation", (event) => resolve(event.violatedDirective));
          const script = document.createElement("script");
          script.textContent = "window.evil = true";
          document.body.append(script);
        })"""
    )
    assert violated.startswith("script-src")
    assert page.page.evaluate("window.evil") is None
    page.visit.console.clear()


def test_errors_are_shown_in_the_language_of_the_page(page: Page) -> None:
    page.page.locator("#language").click()
    page.wait_until_ready("translate")
    page.enter("apples " * 600, "translate")
    page.click("整段作为一个序列")
    page.wait_until(lambda: "最多支持 512 个" in page.text("#error"))
    page.enter("I love apples", "translate")
    assert page.page.locator("#error").is_hidden()
    page.select_model("paint", "image")
    text_file = {"name": "notes.png", "mimeType": "image/png", "buffer": b"no image at all"}
    page.page.locator(".drop-zone input").set_input_files(text_file)
    page.wait_until(lambda: "不支持的图像格式" in page.text("#error"))
    page.page.locator("#language").click()
    page.wait_until(lambda: "a text file, not an image" in page.text("#error"))
    page.page.route("**/api/inspect/image", lambda route: route.abort())
    page.page.locator("#language").click()
    page.wait_until(lambda: "无法连接服务器" in page.text("#error"))
    page.forgive_failed_requests()


def test_all_error_reasons_have_a_chinese_message(page: Page) -> None:
    messages = page.page.evaluate(
        """async () => {
          const { pageStringsFor } = await import("/page/page_strings.js");
          const numbers = { limit: 1, tokens: 2, characters: 2, seconds: 3 };
          const format = ([reason, message]) => [reason, message(numbers)];
          return ["en", "zh"].map((language) => Object.entries(pageStringsFor(language).errors).map(format));
        }"""
    )
    english, chinese = map(dict, messages)
    assert chinese.keys() == set(get_args(Reason)) - {"bad", "disconnected"}
    assert english.keys() < chinese.keys()
    assert not any("undefined" in message or "NaN" in message for message in (*english.values(), *chinese.values()))


def test_both_languages_have_the_same_strings(page: Page) -> None:
    english, chinese = page.page.evaluate(
        """async () => {
          const { pageStringsFor } = await import("/page/page_strings.js");
          return ["en", "zh"].map((language) => Object.keys(pageStringsFor(language)));
        }"""
    )
    assert english == chinese


def test_page_asks_for_a_key_and_keeps_it_until_the_tab_is_closed(browser: Any, page_url: str) -> None:
    with Visit(browser, **DESKTOP) as visit:
        page = Page(visit, page_url)
        assert "requires an API key" in page.text("#error")
        assert page.page.evaluate("document.activeElement.id") == "key"
        page.page.keyboard.type("wrong")
        page.page.keyboard.press("Enter")
        page.wait_until(lambda: "Invalid API key" in page.text("#error"))
        page.page.locator("#key").fill(KEY)
        page.click("Unlock")
        page.page.wait_for_selector(".translation")
        assert page.text(".translation") == "我喜欢苹果"
        assert page.page.locator("#unlock").is_hidden()
        assert page.page.locator("#error").is_hidden()
        page.open("attention")
        assert page.page.locator(".cell").count() == 6 * (2 + 1)
        page.page.reload()
        page.page.wait_for_selector(".cell")
        assert page.page.locator("#unlock").is_hidden()
        assert [message for message in visit.console if "403" not in message] == []
        assert KEY not in page.page.url


def test_docs_page_describes_every_endpoint(page: Page, page_url: str) -> None:
    page.page.goto(f"{page_url}/docs")
    page.wait_until(lambda: page.page.locator("#endpoints details").count())
    schema = page.page.evaluate("fetch('openapi.json').then((response) => response.json())")
    assert page.page.locator("#endpoints details").count() == sum(map(len, schema["paths"].values()))
    page.page.locator("#post-translate summary").click()
    assert "alternatives" in page.text("#post-translate")
