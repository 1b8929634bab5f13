"""The head-to-head page says what its records say."""

from typing import Any

from feedline.benchmarks.peers.peers_report import headline, heads_page
from feedline.profiling.render.html import document


def row(name: str, rate: float | None, problem: str | None = None) -> dict[str, Any]:
    return {"name": name, "samples_per_s": rate, "low": rate, "high": rate, "batch": "uint8", "problem": problem}


LOADING: dict[str, Any] = {
    "host": {"cores": 2, "cpu": "a <fast> one"},
    "tables": {
        "jpeg": [row("limit: bare kernel", 5000.0), row("feedline", 4500.0), row("ffcv", 2500.0),
                 row("dali", None, "no wheel for <this> Python")],
    },
}  # fmt: skip
PREPARING: dict[str, Any] = {
    "what": "photos, 256 px",
    "samples_per_s": {"mosaicml": 600.0, "webdataset": 300.0, "feedline": 900.0},
    "feedline_is_times_faster": {
        "mosaicml": {"low": 1.4, "median": 1.5, "high": 1.6, "wanted": 1.4},
        "webdataset": {"low": 2.9, "median": 3.0, "high": 3.1, "wanted": 2.5},
    },
    "by_round": [{"mosaicml": 610.0, "webdataset": 300.0, "feedline": 900.0}, {"mosaicml": 590.0, "feedline": 901.0}],
    "failed": {"img2dataset": "could not be installed"},
}


def test_the_headline_names_the_best_of_the_others() -> None:
    said = headline(LOADING, PREPARING)
    assert "1.8× the rate of ffcv, the best of 1 others" in said
    assert "1.5× that of mosaicml, the best of 2" in said


def test_the_page_shows_every_row_and_why_one_is_missing() -> None:
    text = document(heads_page(LOADING, PREPARING))
    for words in (
        "ffcv",
        "no wheel for &lt;this&gt; Python",
        "could not be installed",
        "a &lt;fast&gt; one",
        "4,500",
        "590–610",
    ):
        assert words in text
    assert "://" not in text.replace("http://www.w3.org", "")
