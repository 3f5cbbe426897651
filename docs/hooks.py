"""Hooks of the site: links to files outside docs/ become paths, those of the study lead to its pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MARKDOWN = re.compile(r'href="([\w./-]+)\.md(?=["#])')
LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")


def on_post_build(config: Any, **_: Any) -> None:
    """Lead the links of the study's pages, which are copied as they are, to the pages that Markdown became."""
    for name in ("index", "claims"):
        path = Path(config["site_dir"]) / "study" / f"{name}.html"
        path.write_text(MARKDOWN.sub(r'href="\1.html', path.read_text(encoding="utf-8")), encoding="utf-8")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with every such link as code; what does not exist stays a link, which fails the build."""
    folder = Path(page.file.abs_src_path).parent

    def show(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return found[0]
        return f"`{target.relative_to(ROOT)}`"

    return LINK.sub(show, markdown)
