"""Open pages in a browser, and record everything that should not have happened on them."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""Of the program, by preference."""
PAYLOADS = (
    "<script>window.pwned=1</script>", "</script><script>window.pwned=1</script>", "<img src=x onerror=window.pwned=1>",
    "\"><svg/onload=window.pwned=1>", "'><script>alert(1)</script>", "<!--<script>", "--><script>window.pwned=1</script>",
    "</style><script>window.pwned=1</script>", "</pre><script>window.pwned=1</script>", "</textarea><img src=x onerror=alert(1)>",
    "javascript:window.pwned=1", "<a href=javascript:window.pwned=1>x</a>", "<iframe srcdoc='<script>parent.pwned=1</script>'>",
    "<body onload=window.pwned=1>", "{{ 7*7 }}{% raw %}", "${window.pwned=1}", "\\\";window.pwned=1;//", "';window.pwned=1;//",
    "<link rel=stylesheet href=http://127.0.0.1:9/x.css>", "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "<base href=http://127.0.0.1:9/>", "<form action=http://127.0.0.1:9/><button autofocus>", "<object data=http://127.0.0.1:9/x>",
    "<math><mi//xlink:href='data:x,<script>window.pwned=1</script>'>", "\u2028\u2029window.pwned=1",
    "&lt;script&gt;window.pwned=1",
    "<style>@import 'http://127.0.0.1:9/x';</style>",
    "<details open ontoggle=window.pwned=1>", "\u202e<tpircs>1=denwp\x00\x1b[31m",
    "<svg><a xlink:href=javascript:alert(1)><text>x</text></a>",
    "<input autofocus onfocus=window.pwned=1>", "]]><script>alert(1)</script>", "</title><script>window.pwned=1</script>",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "{{ config }}{# {{ self._TemplateReference__context }}",
    "*{background:url(http://127.0.0.1:9/x)}", "<noscript><p title='</noscript><img src=x onerror=window.pwned=1>'>",
    "<svg><animate onbegin=window.pwned=1 attributeName=x dur=1s>", "<a href='data:text/html,<script>1</script>'>x</a>",
    "\u2066\u2067\u061c<b onmouseover=window.pwned=1>\u2069\ufeff\U0001f600",
)  # fmt: skip
"""Texts that would run, ask for something or change the page, were they not escaped."""


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail(
            "no Chromium: run `make chromium` as root, or install it: apt-get install chromium fonts-dejavu-core"
        )
    arguments = ["--no-sandbox", "--font-render-hinting=none", "--disable-lcd-text", "--force-color-profile=srgb"]
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=arguments)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    opened: list[Watched] = []

    def open_one(html: Path, **settings: Any) -> Watched:
        opened.append(Watched(browser, html, **settings))
        return opened[-1]

    yield open_one
    for watched in opened:
        watched.context.close()
        assert watched.wrong == []


def assert_unharmed(watched: Watched) -> None:
    watched.page.wait_for_timeout(30)
    assert watched.page.evaluate("window.pwned") is None
    assert watched.wrong == []
    scripts = watched.page.evaluate("[...document.scripts].map((s) => s.type)")
    assert scripts == ["application/json", ""]
    assert watched.page.locator("iframe, object, embed, base, img, link, body meta, body style").count() == 0


def luminance(colour: str) -> float:
    """WCAG's relative luminance of rgb(r, g, b)."""
    parts = [int(p) / 255 for p in colour.removeprefix("rgb(").rstrip(")").split(",")]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
