"""Translation of a document on the page."""

from pathlib import Path

from tests.serving.page import Page

SUBTITLES = "1\n00:00:01,000 --> 00:00:02,000\n<i>I love apples</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n42\n"
TRANSLATED = SUBTITLES.replace("I love apples", "我喜欢苹果")
DROP = """(zone, text) => {
  const data = new DataTransfer();
  data.items.add(new File([text], "talk.srt"));
  zone.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


def choose(page: Page, name: str, content: bytes) -> None:
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    page.page.locator(".document-file input[type=file]").set_input_files(file)


def download(page: Page) -> str:
    link = page.page.locator(".document-file a")
    link.wait_for(timeout=120_000)
    with page.page.expect_download() as started:
        link.click()
    return Path(started.value.path()).read_bytes().decode("utf-8")


def test_a_document_is_chosen_and_its_translation_downloaded(page: Page) -> None:
    page.enter("I love apples", "translate")
    choose(page, "talk.srt", SUBTITLES.encode())
    assert download(page) == TRANSLATED
    assert page.text(".document-file a") == "Download the translation of talk.srt"
    assert page.text(".document-file summary") == "1 texts are not translated"
    assert page.text(".document-file li") == "cue 2: no words (42)"


def test_a_document_is_dropped(page: Page) -> None:
    page.enter("I love apples", "translate")
    page.page.locator("#language").click()
    page.wait_until_ready("translate")
    page.page.locator(".document-file .drop-zone").evaluate(DROP, SUBTITLES)
    assert download(page) == TRANSLATED
    assert page.text(".document-file h2") == "文档"
    assert page.text(".document-file summary") == "1 处未翻译"


def test_the_script_of_chinese_is_chosen(page: Page) -> None:
    page.enter("I love apples. They see cats.", "translate")
    field = page.page.locator("select.script-target")
    assert field.locator("option").all_inner_texts() == ["Simplified Chinese", "Traditional Chinese"]
    assert page.page.locator("select.script-source").count() == 0
    field.select_option("zt")
    page.page.locator(".translation.whole:has-text('歡')").wait_for()
    page.page.locator(".translation:not(.whole):has-text('我喜歡蘋果')").wait_for()
    assert page.page.locator(".translation").first.get_attribute("lang") == "zh-Hant"
    choose(page, "talk.srt", SUBTITLES.encode())
    assert download(page) == TRANSLATED.replace("我喜欢苹果", "我喜歡蘋果")
    assert "target=zt" in page.page.url


def test_the_column_of_a_csv_file_is_asked_for(page: Page) -> None:
    page.enter("I love apples", "translate")
    choose(page, "rows.csv", b"id,text\n1,I love apples\n")
    page.page.locator(".document-file .column").fill("text")
    page.page.locator(".document-file button").click()
    assert download(page) == "id,text\n1,我喜欢苹果\n"


def test_a_damaged_document_is_reported(page: Page) -> None:
    page.enter("I love apples", "translate")
    choose(page, "a.docx", b"no archive")
    page.page.locator(".document-file .error").wait_for()
    assert page.text(".document-file .error") == "a.docx: damaged or not a .docx file"
    page.forgive_failed_requests()
