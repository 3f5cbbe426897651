"""A page in a browser, and a record of everything that should not have happened on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""Of the program, by preference."""


class Watched:
    """A page, and everything that should not have happened on it."""

    def __init__(self, browser: Browser, html: Path, **settings: Any) -> None:
        settings = {"viewport": {"width": 1180, "height": 900}, "reduced_motion": "reduce", "offline": True} | settings
        self.context = browser.new_context(**settings)
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.url = html.resolve().as_uri()
        self.page.on("console", lambda message: self.wrong.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on(
            "request", lambda request: None if request.url == self.url else self.wrong.append(f"request: {request.url}")
        )
        self.page.goto(self.url)

    def go(self, html: Path) -> None:
        """Another page in the same place."""
        self.url = html.resolve().as_uri()
        self.page.goto(self.url)


Open = Callable[..., Watched]
