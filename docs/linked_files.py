"""A hook of MkDocs: files of the repository that a page links to, fixtures and sources, are part of the site.

On the repository's own pages such links lead out of docs/; a site has nothing there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?P<up>(?:\.\./)+)(?P<path>[^)#]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add what pages link to outside docs/, under `files/`. A link that leads nowhere is left for MkDocs to refuse."""
    found = set()
    for page in files.documentation_pages():
        found |= {path for _up, path in _links(page)}
    for path in sorted(found):
        files.append(File.generated(config, f"files/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_context: Any) -> str:
    """Let those links lead there."""
    inside = set(_links(page.file))
    depth = page.file.src_uri.count("/")

    def moved(link: re.Match[str]) -> str:
        if (link["up"], link["path"]) not in inside:
            return link[0]
        return f"]({'../' * depth}files/{link['path']})"

    return LINK.sub(moved, markdown)


def _links(page: Any) -> list[tuple[str, str]]:
    """Links of a page to files of the repository outside docs/: the way up, and the path from the root."""
    folder = (ROOT / "docs" / page.src_uri).parent
    found = []
    for link in LINK.finditer(Path(page.abs_src_path).read_text(encoding="utf-8")):
        target = (folder / link["up"] / link["path"]).resolve()
        if target.is_file() and target.is_relative_to(ROOT) and not target.is_relative_to(ROOT / "docs"):
            found.append((link["up"], target.relative_to(ROOT).as_posix()))
    return found
