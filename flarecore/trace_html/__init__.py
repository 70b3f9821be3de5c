"""A trace as a page for people: ``flarecore trace FILE -o trace.html``, ``Trace.to_html()``."""

from flarecore.trace_html.page import trace_page

__all__ = ["trace_page"]
