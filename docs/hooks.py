"""What the site does to a page before it is built: a link to a file outside docs/ becomes the path of that file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with every such link as code; what does not exist stays a link, which fails the build."""
    folder = Path(page.file.abs_src_path).parent

    def show(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return found[0]
        return f"`{target.relative_to(ROOT)}`"

    return LINK.sub(show, markdown)
