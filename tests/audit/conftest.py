"""The browser, for pages of an audit."""

from report_browser import browser, open_page

__all__ = ["browser", "open_page"]
