"""The pages in a real browser: no console error, nothing fetched, every chart drawn, no sideways scroll."""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from feedline.profiling.explain.difference import versus
from feedline.profiling.explain.hot_lines import LineProfile
from feedline.profiling.explain.predict import Prediction
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.render.html import document, framed
from feedline.profiling.render.profile_page import comparison, lprof_report, report
from feedline.profiling.render.sections import (
    Axis,
    Bar,
    Bars,
    Columns,
    Coordinates,
    Curve,
    Curves,
    Page,
    Remedies,
    Section,
    Stack,
    Stacks,
)
from tests.profiling.recordings import made, rich

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="Chromium and its driver are not installed"),
]
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip
DRAWN = """return [...document.querySelectorAll('svg')].map(svg => {
    const box = svg.getBBox(), seen = svg.getBoundingClientRect();
    return [svg.querySelector('title')?.textContent ?? '', box.width * box.height, seen.width * seen.height];
})"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER or ""))
    yield driver
    driver.quit()


AXES = [Axis(name="lr", ticks=[(0.0, "0.001"), (1.0, "1")]), Axis(name="top-1", ticks=[(0.5, "50 %")])]


def every_chart() -> str:
    """Every kind of chart once, in one page."""
    remedy = Prediction(
        remedy="r", why="", samples_per_s=200.0, low=150.0, high=250.0, gain=2.0, gain_low=1.5, gain_high=2.5,
        command=f"feedline prepare {'/long' * 30} --size 64 --codec jpeg",
    )  # fmt: skip
    rows = [Bar(label="a", value=1.0, low=0.5, high=1.5, predicted=1.2), Bar(label="b")]
    parts = [
        Bars(rows=rows, title="bars", reference=("ceiling", 2.0)),
        Bars(rows=rows, title="staircase", reference=("ceiling", 2.0), staircase=True),
        Remedies(rows=[[remedy], [remedy, remedy]], unit="samples/s", most=2.5, ceiling=3.0),
        Stacks(rows=[Stack(label="w", parts={"x": 1.0, "y": 2.0})], title="stacks"),
        Curves(curves=[Curve(name="flat", points=[(0, 0), (1, 0)])], title="curves", y_unit="s"),
        Columns(parts={"x": [0.0, 1.0]}, starts=[0, 1], title="columns", y_unit="s"),
        Coordinates(axes=AXES, lines=[("a", 0.5, [0.2, 0.9]), ("b", 1.0, [0.5, 0.5])], title="coordinates"),
    ]
    return document(Page(title="charts", sections=[Section(heading="All", parts=parts)]))


def pages() -> dict[str, str]:
    slow, fast = diagnose(made(wait_s=0.08)), diagnose(made(wait_s=0.01))
    return {
        "report": document(report(diagnose(rich()))),
        "comparison": document(comparison([("slow", slow), ("fast", fast)], [versus(slow, fast)])),
        "lines": document(lprof_report("run.lprof", LineProfile(lines=rich().lines, loader=None, hints={}))),
        "charts": every_chart(),
    }


def fetched(browser: Any) -> list[str]:
    """The addresses asked for since the log was last read, `data:` left out."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [address for address in sent if not address.startswith("data:")]


SMALL = """return [...document.querySelectorAll('main *')].filter(element =>
    [...element.childNodes].some(node => node.nodeType == 3 && node.data.trim())
    && parseFloat(getComputedStyle(element).fontSize) < 11).map(element => element.outerHTML.slice(0, 80))"""
"""Texts too small for a phone."""
OVERLAPPING = """return [...document.querySelectorAll('.head')].filter(head => {
    const [a, b] = [...head.children].map(child => child.getBoundingClientRect());
    return a.width && b.width && a.right > b.left + 1 && a.bottom > b.top + 1 && b.bottom > a.top + 1;
}).map(head => head.textContent)"""
"""Names and values that stand on each other."""
BROKEN = """return [...document.querySelectorAll('.copy')].filter(box => !box.querySelector('span') ||
    [...box.querySelectorAll('span')].some(word => word.getClientRects().length > 1)).map(box => box.textContent)"""
"""Commands with a line that ends within a word."""
SCREENS = {"wide": (1280, False), "dark": (1280, True), "phone": (390, False), "small": (360, True)}


@pytest.mark.parametrize(("width", "dark"), list(SCREENS.values()), ids=list(SCREENS))
@pytest.mark.parametrize("name", list(pages()))
def test_in_a_real_browser(browser: Any, tmp_path: Path, name: str, width: int, dark: bool) -> None:
    path = tmp_path / f"{name}.html"
    path.write_text(pages()[name])
    phone = width < 500
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    browser.get_log("performance")
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    assert fetched(browser) == [path.as_uri()]
    drawn = browser.execute_script(DRAWN)
    assert drawn or name == "lines"
    assert [title for title, box, _ in drawn if not box > 0] == []
    assert [title for title, _, seen in drawn if title and not seen > 0] == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(SMALL) == []
    assert browser.execute_script(OVERLAPPING) == []
    assert browser.execute_script(BROKEN) == []
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(18, 20, 24)") is dark


@pytest.mark.parametrize("dark", [False, True])
def test_a_report_in_a_notebook_keeps_its_own_style(browser: Any, tmp_path: Path, dark: bool) -> None:
    """Whatever the page around it asks for; seen from outside, since nothing runs in the frame."""
    notebook, path = "<style>* { background: red !important; color: red !important }</style>", tmp_path / "cell.html"
    path.write_text(f"<!doctype html>{notebook}<body>{framed(document(report(diagnose(rich()))))}")
    metrics = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    frame = browser.find_element("tag name", "iframe").rect

    def corner(_: Any) -> Any:
        """Its colour; None while the frame is not drawn yet."""
        shown = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
        colour = shown.getpixel((round(frame["x"]) + 8, round(frame["y"]) + 8))
        return None if colour == (255, 0, 0) else colour

    from selenium.webdriver.support.wait import WebDriverWait

    assert WebDriverWait(browser, 60).until(corner) == ((18, 20, 24) if dark else (251, 250, 247))


def test_a_script_in_a_recording_does_not_run(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(document(report(diagnose(rich()))))
    browser.get(path.as_uri())
    assert browser.execute_script("return document.scripts.length") == 0
    assert "<script>alert('x')</script>" in browser.find_element("tag name", "body").text
