"""The page in a real browser, on a server with a translator, an image model, two views, and a run that cannot read."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from regard import Translator
from regard.models.croco import CroCo, CroCoConfig
from regard.models.folder import save_model
from regard.models.transformer import Transformer, TransformerConfig
from regard.serving.errors import Reason
from regard.serving.keys import make_key
from regard.training.run import run_recipe
from tests.browser import Visit
from tests.conftest import small_recipe
from tests.inspection.test_page_in_browser import is_drawn
from tests.serving.server_process import ServerProcess

DESKTOP = {"viewport": {"width": 1400, "height": 900}, "locale": "en-GB"}
EVIL = '<script>alert(1)</script><b>I</b> love <img src=x onerror=alert(2)> apples & "tea"'
KEY, LINE = make_key("ann", 1_000_000)
TEXTUAL = ["translate", "attention", "arithmetic", "beam", "change", "positions"]


pytestmark = pytest.mark.xdist_group("page")  # one server for all, where tests are spread over processes


@pytest.fixture(scope="module")
def parallel_run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run of a model that writes all tokens at once, and has learned some of the toy corpus."""
    out = tmp_path_factory.mktemp("runs") / "once"
    short = {"training__steps": 120, "training__validate_every": 120}
    run_recipe(small_recipe(toy / "train.en", toy / "train.zh", model__kind="nat", **short), out)
    return out


@pytest.fixture(scope="module")
def url(
    trained_run: Path,
    parallel_run: Path,
    image_run: Path,
    swin_run: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A server with one model of each sort."""
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(trained_run / "best", folder / "mute", ignore=shutil.ignore_patterns("*tokenizer.json"))
    torch.manual_seed(0)
    (folder / "views").mkdir()
    save_model(folder / "views", CroCo(CroCoConfig.micro()), {})
    narrow = TransformerConfig.tiny(vocab=len(Translator.load(trained_run).vocabularies.source), width=16, heads=1)
    shutil.copytree(trained_run / "best", folder / "one")
    save_model(folder / "one", Transformer(narrow), {"languages": ["en", "zh"]})
    named = {"toy": trained_run, "paint": image_run, "windows": swin_run}
    named |= {name: folder / name for name in ("one", "views", "mute")} | {"once": parallel_run}
    (folder / "keys").write_text(LINE)
    (folder / "keys").chmod(0o600)
    runs = [f"{name}={run}" for name, run in named.items()]
    running = ServerProcess(*runs, "--keys", folder / "keys", "--limit", "drain=0")
    yield running.wait_until_ready().url
    assert running.stop() == 0


class Page:
    """The page at work; everything that it asks for and complains about is kept."""

    def __init__(self, visit: Visit, url: str, key: str | None = KEY) -> None:
        self.visit, self.page, self.url = visit, visit.page, url
        self.alerts: list[str] = []
        if key is not None:
            self.page.add_init_script(f"sessionStorage.setItem('key', '{key}')")
        self.page.on("dialog", lambda dialog: (self.alerts.append(dialog.message), dialog.dismiss()))
        self.page.goto(url)
        self.ready("translate")

    def ready(self, section: str) -> None:
        self.page.wait_for_selector(f"html[data-ready={section}]", state="attached", timeout=10_000)

    def open(self, section: str) -> None:
        self.page.locator(f"[data-section={section}]").click()
        self.ready(section)

    def model(self, name: str, section: str) -> None:
        self.page.locator("#model").select_option(name)
        self.until(lambda: self.page.locator(f"html[data-ready={section}]").count())

    def type(self, text: str, section: str) -> None:
        self.page.locator("#text").fill(text)
        self.page.evaluate("document.documentElement.removeAttribute('data-ready')")
        self.page.keyboard.press("Enter")
        self.ready(section)

    def until(self, true: Callable[[], object]) -> None:
        """Waits in Python: the page's policy lets nobody evaluate strings within it."""
        for _ in range(400):
            if true():
                return
            self.page.wait_for_timeout(25)
        raise AssertionError("it did not come true within 10 seconds")

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.text_content())

    def check(self) -> None:
        """Nothing went wrong, and nobody else was asked for anything."""
        assert self.visit.console == []
        assert self.alerts == []
        assert all(request.startswith(self.url) for request in self.visit.requests)


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Page]:
    with Visit(browser, **DESKTOP) as visit:
        opened = Page(visit, url)
        yield opened
        opened.check()


def test_a_sentence_is_translated_and_a_word_says_what_it_looked_at(page: Page) -> None:
    assert page.text(".answer") == "我喜欢苹果"
    page.type("You buy tea", "translate")
    assert page.text(".answer") == "你买茶"
    scores = [float(score) for score in page.page.locator(".alternative .score").all_text_contents()]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    page.page.locator(".tokens.target .token").last.focus()
    assert "attends to" in page.text(".readout")
    assert "probability" in page.text(".readout")
    page.page.locator(".alternative").nth(1).click()
    assert page.text(".answer") == page.page.locator(".alternative span:last-child").nth(1).text_content() != "你买茶"


def test_heads_are_shown_at_a_glance_at_large_and_beside_each_other(page: Page) -> None:
    page.open("attention")
    assert page.page.locator(".cell").count() == 6 * (2 + 1)
    assert is_drawn(page.page, ".headpanel canvas.matrix")
    page.page.get_by_role("button", name="decoder.0.attention, head 1").click()
    page.until(lambda: page.text(".chosen") == "toy · decoder.0.attention · head 1")
    weights = page.page.locator("canvas.matrix").first.screenshot()
    page.page.locator(".controls select").first.select_option("scores")
    page.until(lambda: page.text(".legend span") != "0")
    assert page.page.locator("canvas.matrix").first.screenshot() != weights
    page.page.locator(".compare").click()
    page.page.wait_for_selector(".beside .headpanel .chosen:not(:empty)")
    assert page.page.locator(".chosen").nth(1).text_content().startswith("one · ")
    page.page.locator(".compare").click()
    page.page.wait_for_selector(".beside > div:nth-child(2) .chosen:not(:empty)")
    assert page.page.locator(".chosen").nth(2).text_content().startswith("once · ")
    page.page.locator(".compare").click()
    page.page.wait_for_selector(".beside > div:nth-child(3) .chosen:not(:empty)")
    assert page.page.locator(".chosen").nth(3).text_content() == "toy · decoder.0.attention · mean"
    page.page.get_by_role("button", name="remove").first.click()
    assert page.page.locator(".headpanel").count() == 3


def test_the_steps_of_attention_end_where_the_model_does(page: Page) -> None:
    page.open("arithmetic")
    steps = page.page.locator(".steps button")
    assert "q·k" in page.text(".formula")
    steps.nth(3).click()
    shares = [
        float(share) for share in page.page.locator("table.arithmetic td[data-step='3'] span").all_text_contents()
    ]
    assert sum(shares) == pytest.approx(1, abs=5e-3)
    page.page.keyboard.press("ArrowRight")
    assert page.page.locator(".rest > div").first.is_visible()
    page.page.keyboard.press("ArrowRight")
    assert "2 heads × 16 = 32" in page.text(".formula")


def test_the_toy_gives_the_numbers_of_the_worked_example(page: Page) -> None:
    page.open("arithmetic")
    cells = page.page.locator(".toytable.weights td")
    assert cells.all_text_contents() == ["0.73", "0.27", "0.27", "0.73"]
    page.page.get_by_label("÷ √4").uncheck()
    assert cells.all_text_contents() == ["0.88", "0.12", "0.12", "0.88"]
    page.page.locator(".toy").get_by_label("mask").check()
    assert cells.all_text_contents()[:2] == ["1", "0"]


def test_the_beam_is_stepped(page: Page) -> None:
    page.open("beam")
    later = page.page.locator(".tree .later")
    assert later.count() == 0
    page.page.get_by_role("button", name="to the first step").click()
    columns = page.page.locator(".tree > g").count()
    assert later.count() == columns - 1 > 2
    page.page.get_by_role("button", name="next").click()
    assert later.count() == columns - 2
    page.page.locator(".tree .dropped").first.focus()
    assert "dropped" in page.text(".readout")
    assert page.page.locator(".tree .node.won").count() == 0
    for _ in range(columns):
        page.page.get_by_role("button", name="next").click()
    assert page.page.locator(".tree .node.won").count() == 4
    assert page.text(".answer") == "我喜欢苹果"
    page.page.locator(".controls select").first.select_option("1")
    page.until(lambda: page.page.locator(".tree .node.kept").count() < 5)


def test_the_beam_is_shown_without_hindsight_and_rests_where_the_answer_ended(page: Page) -> None:
    def search_on(route: Any) -> None:
        """The model's own search, and one step more, in which nothing wins."""
        found = route.fetch().json()
        step = max(node["step"] for node in found["tree"]) + 1
        late = {"step": step, "parent": len(found["tree"]) - 1, "fate": "dropped: it could no longer win"}
        route.fulfill(json=found | {"tree": [*found["tree"], found["tree"][-1] | late]})

    page.page.route("**/api/inspect/beam", search_on)
    page.open("beam")
    assert page.page.get_by_label("beam").input_value() == "5"
    steps = page.page.locator(".tree > g")
    last_dropped = [step.locator(".node.dropped").count() for step in steps.all()]
    scores = [float(score) for score in steps.nth(1).locator(".score").all_text_contents()]
    assert scores == sorted(scores, reverse=True)
    page.page.get_by_role("button", name="to the first step").click()
    dropped = steps.nth(0).locator(".node.dropped")
    assert dropped.count() < last_dropped[0]
    page.page.get_by_role("button", name="next").click()
    assert dropped.count() == last_dropped[0]
    page.page.get_by_role("button", name="Play").click()
    page.until(lambda: "The answer ended here, at step 4" in page.text(".readout"))
    assert page.page.locator(".tree .later").count() == steps.count() - 4 == 1


def test_what_was_typed_is_taken_along_and_nothing_is_not_translated(page: Page) -> None:
    page.open("beam")
    page.page.locator("#text").fill("I love tea")
    page.open("change")
    assert page.text(".line .tokens") == "我喜欢茶END"
    page.page.locator("#text").fill("  ")
    page.page.get_by_role("button", name="Translate", exact=True).click()
    page.until(lambda: page.page.locator(".missing").count())
    assert "Write some words" in page.text(".missing")


def test_an_address_opens_a_section_and_a_reload_keeps_model_and_sentence(page: Page) -> None:
    page.type("You buy tea", "translate")
    page.model("one", "translate")
    page.page.evaluate("location.hash = '#beam'")
    page.ready("beam")
    page.page.reload()
    page.ready("beam")
    assert page.page.locator("#model").input_value() == "one"
    assert page.page.locator("#text").input_value() == "You buy tea"


def test_a_comparison_that_fails_can_be_removed(page: Page) -> None:
    page.open("attention")

    def refuse(route: Any) -> None:
        meant = route.request.post_data_json["model"] == "one"
        route.fulfill(status=400, json={"error": "no such sentence"}) if meant else route.fallback()

    page.page.route("**/api/inspect/attention", refuse)
    page.page.locator(".compare").click()
    page.page.wait_for_selector(".beside .problem")
    assert page.text(".beside .problem") == "one: no such sentence"
    page.page.get_by_role("button", name="remove").click()
    assert page.page.locator(".beside > div").count() == 0
    page.visit.console = [one for one in page.visit.console if "Failed to load resource" not in one]


def test_of_scores_there_is_no_mean(page: Page) -> None:
    page.open("attention")
    show = page.page.locator(".controls select").first
    show.select_option("scores")
    page.until(lambda: page.text(".headpanel .hint").startswith("scores"))
    page.page.get_by_role("button", name="decoder.0.attention, mean").click()
    page.until(lambda: page.text(".headpanel .hint").startswith("weights"))
    assert show.input_value() == "weights"
    assert show.locator("option[value=scores]").is_disabled()


def test_a_file_dropped_beside_its_place_opens_nothing(page: Page) -> None:
    left = page.page.evaluate(
        """() => ["dragover", "drop"].map((name) => {
          const files = new DataTransfer();
          files.items.add(new File(["x"], "x.png", {type: "image/png"}));
          const init = {dataTransfer: files, bubbles: true, cancelable: true};
          return document.body.dispatchEvent(new DragEvent(name, init));
        })"""
    )
    assert left == [False, False]


def test_the_rounds_of_writing_at_once_are_stepped_and_played(page: Page) -> None:
    page.type("They want tea and dogs", "translate")
    page.model("once", "translate")
    page.open("beam")
    rows = page.page.locator("table.rounds tr")
    assert rows.count() == 4
    assert page.page.locator("table.rounds .later").count() == 0
    masked = [row.locator(".token.again").count() for row in rows.all()]
    assert masked[0] == 0
    assert masked == [0, *sorted(masked[1:], reverse=True)]
    assert masked[1] == page.page.locator("tr:nth-child(2) s.was").count() > 0
    before = rows.nth(0).locator(".token").all_text_contents()
    cells = rows.nth(1).locator("td").all()
    assert [cell.locator("s").text_content() for cell in cells if cell.locator("s").count()] == [
        piece for piece, cell in zip(before, cells, strict=True) if cell.locator(".again").count()
    ]
    rows.nth(1).locator(".again").first.focus()
    assert "masked again" in page.text(".readout")
    page.page.get_by_role("button", name="to the first step").click()
    assert page.page.locator("table.rounds .later").count() == 3
    page.page.get_by_role("button", name="next", exact=True).click()
    assert page.page.locator("table.rounds .later").count() == 2
    page.page.get_by_role("button", name="Play").click()
    page.until(lambda: page.page.locator("table.rounds .later").count() == 0)
    page.page.get_by_label("iterations").select_option("2")
    page.until(lambda: rows.count() == 2)
    page.page.get_by_label("lengths tried").select_option("3")
    page.until(lambda: page.page.locator(".alternative").count() == 3)
    places = len(before)
    page.page.locator(".alternative").nth(1).click()
    assert rows.nth(0).locator("td").count() != places


def test_a_head_that_is_switched_off_changes_the_translation(page: Page) -> None:
    with page.page.expect_request(lambda one: "factors" in (one.post_data or "")) as asked:
        page.open("change")
    assert set(asked.value.post_data_json["search"].values()) == {None}  # nothing but the server's own search
    lines = page.page.locator(".line .tokens")
    assert lines.nth(0).text_content() == lines.nth(1).text_content() == "我喜欢苹果END"
    for name in ("decoder.0.cross", "decoder.1.cross"):
        for head in (0, 1):
            page.page.get_by_role("button", name=f"{name}, head {head}", exact=True).click()
    page.page.wait_for_selector(".line.differs .token.changed")
    assert lines.nth(0).text_content() == "我喜欢苹果END" != lines.nth(1).text_content()
    page.page.get_by_role("button", name="Reset").click()
    page.ready("change")
    assert page.page.locator(".line.differs").count() == 0
    page.page.locator(".section textarea").fill("I love tea")
    page.page.wait_for_selector(".line.differs")
    assert lines.nth(1).text_content() == "我喜欢茶END"


def test_positions_are_drawn(page: Page) -> None:
    page.open("positions")
    assert page.page.locator("figure canvas").count() >= 2
    assert is_drawn(page.page, "figure canvas")
    page.model("views", "positions")
    assert is_drawn(page.page, ".dials canvas")


def test_an_image_is_dropped_and_a_patch_asked(page: Page, painted: Path) -> None:
    page.model("paint", "image")
    data = list((painted / "test" / "red" / "004.png").read_bytes())
    page.page.evaluate(
        """(bytes) => {
          const files = new DataTransfer();
          files.items.add(new File([new Uint8Array(bytes)], "<b>red</b>.png", {type: "image/png"}));
          document.querySelector(".drop").dispatchEvent(new DragEvent("drop", {dataTransfer: files, bubbles: true}));
        }""",
        data,
    )
    page.page.wait_for_selector(".class")
    assert page.text(".class span") == "red"
    assert page.text(".drop .hint") == "<b>red</b>.png"
    assert is_drawn(page.page, ".rollout canvas")
    assert page.page.locator(".thumbs canvas").count() > 1
    page.page.locator(".rollout canvas").click(position={"x": 100, "y": 100})
    page.page.get_by_role("button", name="the whole answer").wait_for()


def test_a_patch_looks_within_its_window(page: Page, painted: Path) -> None:
    page.model("windows", "image")
    page.page.locator(".drop input").set_input_files(painted / "test" / "blue" / "004.png")
    page.page.wait_for_selector(".windows canvas")
    assert page.text(".class span") == "blue"
    assert "rollout" in page.text(".card > .hint")
    layers = page.page.get_by_label("layer")
    assert layers.locator("option").count() == 4
    layers.select_option("0")
    whole = page.page.locator(".windows canvas").screenshot()
    page.page.locator(".windows canvas").click(position={"x": 300, "y": 20})
    page.page.get_by_role("button", name="all patches").wait_for()
    looked = page.page.locator(".windows canvas").screenshot()
    assert looked != whole
    # The window is 2 of the 8 patches wide, above on the right: all else is dark, and so are its neighbours.
    bright = page.page.evaluate(
        """() => {
          const canvas = document.querySelector(".windows canvas");
          const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const colours = (x, y) => data.slice(4 * (y * width + x), 4 * (y * width + x) + 3);
          const middle = (place) => Math.round(((place + 0.5) * width) / 8);
          return [[6, 0], [7, 1], [5, 0], [6, 2], [0, 7]].map(([x, y]) => Math.max(...colours(middle(x), middle(y))));
        }"""
    )
    assert min(bright[:2]) > 2 * max(bright[2:])
    page.page.locator(".thumbs .cell").nth(1).click()
    assert "head 0" in page.text(".windows h3")


def test_a_patch_looks_at_the_other_view(page: Page, painted: Path) -> None:
    page.model("views", "image")
    for number, colour in enumerate(("red", "blue")):
        page.page.locator(".drop input").nth(number).set_input_files(painted / "test" / colour / "004.png")
    page.page.wait_for_selector(".second canvas")
    before = page.page.locator(".second canvas").screenshot()
    page.page.locator(".first canvas").click(position={"x": 10, "y": 300})
    assert page.page.locator(".second canvas").screenshot() != before


def test_what_a_model_cannot_do_is_said_in_a_sentence(page: Page) -> None:
    page.open("image")
    assert "toy reads text" in page.text(".missing")
    page.model("mute", "positions")
    for section in ("translate", "attention", "beam"):
        page.open(section)
        assert "mute has no tokenizer" in page.text(".missing")
    page.model("paint", "image")
    page.open("translate")
    assert "paint tells images apart" in page.text(".missing")


def test_markup_is_text_everywhere(page: Page) -> None:
    page.type(EVIL, "translate")
    for section in TEXTUAL:
        page.open(section)
        assert page.page.locator("b, img, main script").count() == 0
    assert "<script>" in page.page.locator("#text").input_value()
    assert page.page.locator("script").count() == 1


def test_language_theme_and_keyboard(page: Page) -> None:
    page.open("attention")
    page.page.locator("#language").click()
    page.ready("attention")
    assert page.text("[data-section=attention]") == "注意力"
    assert "层" in page.text(".overview")
    assert page.page.evaluate("document.documentElement.lang") == "zh-CN"
    light = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.page.locator("#theme").click()
    page.ready("attention")
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.page.locator("[data-section=attention]").focus()
    page.page.keyboard.press("ArrowRight")
    page.ready("arithmetic")
    assert page.page.evaluate("document.activeElement.dataset.section") == "arithmetic"


def test_a_phone_shows_every_section_without_scrolling_sideways(browser: Any, url: str) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "locale": "zh-CN", "has_touch": True, "color_scheme": "dark"}
    with Visit(browser, **phone) as visit:
        page = Page(visit, url)
        for section in [*TEXTUAL, "image"]:
            page.open(section)
            width, shown = page.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert width <= shown, section
        page.check()


def test_a_closed_section_is_worked_for_no_more(page: Page) -> None:
    page.page.route("**/api/inspect/attention", lambda route: None)  # never answered
    page.page.locator("[data-section=attention]").click()
    page.page.wait_for_timeout(100)
    asked = len(page.visit.requests)
    with page.page.expect_event("requestfailed", lambda request: request.url.endswith("/api/inspect/attention")):
        page.open("positions")
    assert [url for url in page.visit.requests[asked:] if "/api/" in url] == [f"{page.url}/api/inspect/positions"]


def test_every_script_and_style_comes_from_here(page: Page) -> None:
    answer = page.page.request.get(page.url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    complaint = page.page.evaluate(
        """() => new Promise((resolve) => {
          document.addEventListener("securitypolicyviolation", (event) => resolve(event.violatedDirective));
          const script = document.createElement("script");
          script.textContent = "window.evil = true";
          document.body.append(script);
        })"""
    )
    assert complaint.startswith("script-src")
    assert page.page.evaluate("window.evil") is None
    page.visit.console.clear()


def test_what_the_server_refuses_is_said_in_the_language_of_the_page(page: Page) -> None:
    page.page.locator("#language").click()
    page.ready("translate")
    page.type("apples " * 600, "translate")
    page.until(lambda: "最多可以查看 512 个" in page.text("#problem"))
    page.type("I love apples", "translate")
    assert page.page.locator("#problem").is_hidden()
    page.model("paint", "image")
    photo = {"name": "notes.png", "mimeType": "image/png", "buffer": b"no image at all"}
    page.page.locator(".drop input").set_input_files(photo)
    page.until(lambda: "不是已知格式的图像" in page.text("#problem"))
    page.page.locator("#language").click()
    page.until(lambda: "a text file, not an image" in page.text("#problem"))
    page.page.route("**/api/inspect/image", lambda route: route.abort())
    page.page.locator("#language").click()
    page.until(lambda: "服务器没有回答" in page.text("#problem"))
    page.visit.console = [one for one in page.visit.console if "Failed to load resource" not in one]


def test_every_reason_to_refuse_has_a_sentence_in_chinese(page: Page) -> None:
    refusals = page.page.evaluate(
        """async () => {
          const { phrasesOf } = await import("/page/phrases.js");
          const numbers = { limit: 1, tokens: 2, characters: 2, seconds: 3 };
          const tell = ([reason, say]) => [reason, say(numbers)];
          return ["en", "zh"].map((language) => Object.entries(phrasesOf(language).refusals).map(tell));
        }"""
    )
    english, chinese = map(dict, refusals)
    assert chinese.keys() == set(get_args(Reason)) - {"bad", "disconnected"}
    assert english.keys() < chinese.keys()
    assert not any("undefined" in said or "NaN" in said for said in (*english.values(), *chinese.values()))


def test_a_key_is_asked_for_where_the_server_wants_one(browser: Any, url: str) -> None:
    with Visit(browser, **DESKTOP) as visit:
        page = Page(visit, url, key=None)
        assert "asks for an API key" in page.text("#problem")
        assert page.page.evaluate("document.activeElement.id") == "key"
        page.page.keyboard.type("wrong")
        page.page.keyboard.press("Enter")
        page.until(lambda: "does not know that API key" in page.text("#problem"))
        page.page.locator("#key").fill(KEY)
        page.page.get_by_role("button", name="Open").click()
        page.page.wait_for_selector(".answer")
        assert page.text(".answer") == "我喜欢苹果"
        assert page.page.locator("#unlock").is_hidden()
        assert page.page.locator("#problem").is_hidden()
        page.open("attention")
        assert page.page.locator(".cell").count() == 6 * (2 + 1)
        page.page.reload()  # it is remembered as long as the tab is open
        page.page.wait_for_selector(".cell")
        assert page.page.locator("#unlock").is_hidden()
        assert [one for one in visit.console if "403" not in one] == []
        assert KEY not in page.page.url
