"""The report in a real browser: it fits, nothing is fetched, plots are drawn."""

from __future__ import annotations

import pytest
from helpers_browser import NAMES, Browser, find_browser
from test_eval_report import folder  # noqa: F401
from test_trace_browser import is_quiet, js

from flarecore.eval.report import write_report

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1400, "dark")])
def test_the_report_fits_and_is_drawn(folder, width, scheme):  # noqa: F811
    _, files = write_report(folder)
    with Browser(BROWSER) as browser:
        browser.open(files[1].as_uri(), width=width, scheme=scheme)
        found = js(browser, """
            const root = document.documentElement;
            const box = (e) => e.getBoundingClientRect();
            const labels = [...document.querySelectorAll(".report-part > h2")];
            const heads = [...document.querySelectorAll(".scroll table")].map(t => {
                const head = box(t.querySelector("thead th:last-child")).right;
                return Math.abs(head - box(t.querySelector("tbody td:last-child")).right); });
            const plot = document.querySelector("svg.plot");
            const inside = [...plot.querySelectorAll("text, circle, line")].every(e =>
                box(e).left >= box(plot).left - 1 && box(e).right <= box(plot).right + 1);
            const mark = document.querySelector(".series.em .mark");
            return {overflow: root.scrollWidth - root.clientWidth, heads, inside,
                    one_line: labels.every(h => box(h).height < 90),
                    fill: getComputedStyle(mark).fill}""")
        assert found["overflow"] <= 0 and found["one_line"] and found["inside"]
        assert max(found["heads"]) < 1  # columns stand under their heads
        assert found["fill"] == {"light": "rgb(11, 92, 173)", "dark": "rgb(133, 184, 255)"}[scheme]
        assert is_quiet(browser)
