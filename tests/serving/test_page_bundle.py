"""The script with all modules of the page."""

import re

import pytest

pytest.importorskip("fastapi")

from regard.inspection.bundle_modules import bundle_modules, compact
from regard.serving.page_api import read_page_files
from tests.serving.page import Page


def test_bundle_contains_every_module_once_after_its_dependencies() -> None:
    files = {
        "page.js": b'import { show as draw } from "./a.js";\nimport { name } from "./b.js";\ndraw(name);\n',
        "a.js": b'import { name } from "./b.js";\n\nexport function show() {}\n',
        "b.js": b'// Comment\nexport const name = "b"; // x\n/**\n * Other.\n */\nexport class Other {}\n',
    }
    bundle = bundle_modules(files, "page.js").decode()
    assert re.findall(r"^const \$\$(\w+)", bundle, re.M) == ["b", "a", "page"]
    assert "return { name, Other };" in bundle
    assert "Comment" not in bundle
    assert "Other." not in bundle
    assert "const{show: draw}=$$a;" in bundle or "const{show:draw}=$$a;" in bundle


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (b"export let count = 0;\n", "export let count = 0; cannot be bundled"),
        (b'import * as dom from "./dom.js";\n', "import .* cannot be bundled"),
        (b'import { a } from "./page.js";\n', "page imports itself through page"),
    ],
)
def test_modules_that_cannot_be_bundled_are_rejected(module: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        bundle_modules({"page.js": module}, "page.js")


@pytest.mark.parametrize(
    ("text", "compacted"),
    [
        ("const a = b + 1; // c\n  return a;\n", "const a=b+1;\nreturn a;\n"),
        ("if (a) {\n  b( x , y );\n}\n", "if(a){\nb(x,y);\n}\n"),
        ("a = b - -c + +d;\n", "a=b- -c+ +d;\n"),
        ("say(\"a , // b\", 'c  d');\n", "say(\"a , // b\",'c  d');\n"),
        ("t = `a  ${b ? `c , d` : { e: 1 }} , f`;\n", "t=`a  ${b ? `c , d` : { e: 1 }} , f`;\n"),
        ('return /[" ]/.test(a) ? `"` : () => /` /;\n', 'return /[" ]/.test(a)?`"`:()=> /` /;\n'),
        ("x = / a , [/ ]b/g;\ny = a / b / c;\n", "x= / a , [/ ]b/g;\ny=a/b/c;\n"),
    ],
)
def test_spaces_are_removed_only_from_code(text: str, compacted: str) -> None:
    assert compact(text) == compacted


def test_page_loads_its_modules_with_one_request(page: Page) -> None:
    files = [url.removeprefix(f"{page.url}/") for url in page.visit.requests]
    assert [name for name in files if name.endswith(".js")] == ["page/bundle.js"]
    api = [name for name in files if name.startswith("api/")]
    assert api == ["api/models", "api/inspect/sentences", "api/inspect/translation"]  # each waits for the one before


def test_scripts_of_the_page_are_small() -> None:
    assert len(read_page_files()["bundle.js"]) < 250_000
