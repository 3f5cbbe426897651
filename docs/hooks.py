"""Hooks of the site: files outside docs/ that pages link to come along as text, the study's links lead to its pages, the gallery
is made, and search leaves out the evidence."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
MARKDOWN = re.compile(r'href="([\w./-]+)\.md(?=["#])')
LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")
EVIDENCE = ("log.md", "claims.md", "study/protocol.md")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages of the gallery."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(ROOT / "docs" / "draw_pages.py"))["write_gallery"](Path(scratch))
        for page in sorted(Path(scratch).iterdir()):
            files.append(File.generated(config, f"gallery/{page.name}", content=page.read_text(encoding="utf-8")))
    return files


def on_post_build(config: Any, **_: Any) -> None:
    """Lead the links of the study's pages, which are copied as they are, to the pages that Markdown became."""
    for name in ("index", "claims"):
        path = Path(config["site_dir"]) / "study" / f"{name}.html"
        path.write_text(MARKDOWN.sub(r'href="\1.html', path.read_text(encoding="utf-8")), encoding="utf-8")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any, **_: Any) -> str:
    """Return the page with links to files outside docs/ as links to copies; what does not exist fails the build."""
    folder = Path(page.file.abs_src_path).parent
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri in EVIDENCE:
        page.meta["search"] = {"exclude": True}

    def show(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return found[0]
        path = target.relative_to(ROOT).as_posix()
        if not target.is_file():
            return f"`{path}`"
        copy = f"source/{path}.txt"
        if files.get_file_from_path(copy) is None:
            files.append(File.generated(config, copy, content=target.read_text(encoding="utf-8")))
        return f"[`{path}`]({up}{copy})"

    return LINK.sub(show, markdown)
