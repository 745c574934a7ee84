"""Links of the documentation site: those between notebooks and pages, and a check of all of them after the build.

Hooks of MkDocs (mkdocs.yml). MkDocs itself resolves the links of Markdown pages only.
"""

import logging
import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

log = logging.getLogger("mkdocs.hooks.site_links")  # a warning is an error with --strict
TARGET = re.compile(r"""(?<=[\s"'])(href|src)="(?![a-z]+:|//)([^"]*)\"""")


def on_page_content(html: str, *, page: Any, files: Any, **_: Any) -> str:
    """Replace the links of a notebook to source files by links to their pages, and name its Chinese sections."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    for entry in page.toc:
        for section in entry.children:
            if re.fullmatch(r"_\d+", section.id):  # no ASCII letters: the heading has no id
                section.id = re.sub(r"\W+", "-", section.title).strip("-")
                heading, anchor = f">{section.title}<a class=", 'href="#"'
                html = re.sub(
                    f'id=""{re.escape(heading)}("[^"]*") {anchor}',
                    rf'id="{section.id}"{heading}\1 href="#{section.id}"',
                    html,
                )

    def resolve(match: re.Match[str]) -> str:
        attribute, (path, mark, section) = match[1], match[2].partition("#")
        file = files.get_file_from_path(posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), path)))
        return f'{attribute}="{file.url_relative_to(page.file)}{mark}{section}"' if path and file else match[0]

    return TARGET.sub(resolve, html)


def on_post_build(*, config: Any, **_: Any) -> None:
    """Report links within the site to missing files and sections."""
    for page, target in broken_links(Path(config.site_dir)):
        log.warning("%s: the target of the link %s does not exist", page, target)


def broken_links(site: Path) -> list[tuple[str, str]]:
    """Return the page and the target of every link within a built site that leads nowhere."""
    pages = {path.resolve(): path.read_text("utf-8") for path in sorted(site.rglob("*.html"))}
    anchors = {path: set(re.findall(r'\b(?:id|name)="([^"]+)"', html)) for path, html in pages.items()}
    broken = []
    for path, html in pages.items():
        for target in dict.fromkeys(target for _, target in TARGET.findall(html)):
            name, _, section = unquote(target).partition("#")
            linked = (path.parent / name).resolve() if name else path
            exists = linked.exists() and (not section or section in anchors.get(linked, {section}))
            if not exists and path.name != "404.html":  # its links are absolute
                broken.append((path.relative_to(site.resolve()).as_posix(), target))
    return broken
