"""Reports in every form: complete, escaped, self-contained, and the same facts as the diagnosis."""

import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from feedline.profiling.explain.difference import versus
from feedline.profiling.explain.predict import Prediction
from feedline.profiling.explain.remedies.remedy import Effort
from feedline.profiling.explain.verdict import Diagnosis, diagnose
from feedline.profiling.record.plain import to_plain
from feedline.profiling.record.recording import Gpu, Leg, Recording, Script, Series, Step, ThreadTime
from feedline.profiling.render import html
from feedline.profiling.render.plain_text import bar, text
from feedline.profiling.render.profile_page import comparison, report
from feedline.profiling.render.sections import Curves, Page, Remedies, Stack, Stacks, section
from feedline.profiling.render.trace import trace
from tests.profiling.recordings import made, rich

VOID = {"meta", "link", "br", "hr"}


class Balanced(HTMLParser):
    """Fails on an element that is closed by another's tag, collects addresses and scripts."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(document)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


EMPTY = Recording(script=Script(argv=["x.py"]))


def document(seen: Recording) -> str:
    return html.document(report(diagnose(seen)))


def shown_as_text(seen: Recording, width: int = 88) -> str:
    return text(report(diagnose(seen)), width=width)


def test_transforms_are_told_with_a_core_to_themselves_and_with_what_looks_can_tell() -> None:
    """Of 1 ms a sample 80 % are one transform's; half of it the workers had no core. With few looks none is known."""
    seen = made(stages={"decode": 0.002, "transform": 0.001})
    half = [replace(one, stages_delay_s={"transform": 0.5 * one.stages["transform"]}) for one in seen.workers]
    looked = ([replace(one, ticks=ticks) for one in half] for ticks in (99_999, 9))
    many, few = (shown_as_text(replace(seen, workers=workers)) for workers in looked)
    assert re.search(r"By transform \(ms per sample, 95 % interval\)\n +0\.4 +\(0\.1\d+–0\.6\d*\) +Random", many)
    assert "By transform" not in few


@pytest.mark.parametrize("seen", [rich(), made(), EMPTY], ids=["rich", "plain", "empty"])
def test_the_page_is_whole_and_fetches_nothing(seen: Recording) -> None:
    page = document(seen)
    shown = Balanced(page)
    assert "script" not in shown.tags
    assert [address for address in shown.addresses if not address.startswith("data:")] == []
    assert "url(" not in page and "@import" not in page


def test_the_command_at_the_top_can_be_pasted() -> None:
    script = Script(argv=["my train.py", "--data", "$(touch x)"])
    assert "'my train.py' --data '$(touch x)'" in unescape(document(replace(EMPTY, script=script)))


def test_the_verdict_comes_first_and_says_what_the_diagnosis_says() -> None:
    found = diagnose(rich())
    body = document(rich()).partition("<body>")[2]
    words = unescape(re.sub(r"<[^>]+>", " ", body)).replace("\u00a0", " ")
    parts = (
        found.headline, "The step", found.evidence[0], "Do this first", found.predictions[0].remedy,
        "What else would help", "What would not help", "Where the time goes",
        "Step by step", "Resources", "The legs", "Line by line", "About this recording",
    )  # fmt: skip
    for shown in (words, " ".join(shown_as_text(rich(), width=400).split())):
        there = [part for part in parts if part.lower() in shown.lower()]
        order = [shown.lower().index(part.lower()) for part in there]
        assert order == sorted(order) and set(parts) - set(there) <= {"Step by step", "Resources"}  # drawn alone
    for one in found.predictions:
        assert one.remedy in words


def test_markup_in_a_recording_stays_text() -> None:
    shown = document(rich())
    assert "<script" not in shown
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in shown


def widest(shown: str) -> int:
    """Commands, which are to be copied, stay whole."""
    return max(len(line) for line in shown.splitlines() if not line.startswith(" " * 10))


def test_text_keeps_within_its_width_and_has_every_part() -> None:
    shown = shown_as_text(rich())
    for heading in ("The step", "The workers", "WHAT ELSE WOULD HELP", "GPU", "LINE BY LINE", "NOTES"):
        assert heading in shown
    assert widest(shown) <= 92
    assert shown_as_text(EMPTY).startswith("Cannot tell: no training step was seen")


def test_every_leg_has_its_line_and_says_what_qualifies_it() -> None:
    seen = made(ceiling=3900.0, loader_only={2: 330.0})
    note = "dropping the page cache did not work: 64 of 64 files checked are still in memory"
    seen = replace(seen, legs=[*seen.legs, Leg(name="cold", samples_per_s=[210.0], note=note)])
    seen = Recording.from_dict(to_plain(seen))
    shown = shown_as_text(seen, width=100)
    flat = " ".join(shown.split())
    assert "Medians of the windows (samples/s, 95 % interval)" in flat
    assert "3,900 (3,851–3,949) cached batches" in flat
    assert "330 (326–334) the loader alone, 2 workers" in flat
    assert f"210 (168–252) cold page cache {note}" in flat
    assert widest(shown) <= 104


def test_a_loop_without_a_loader_is_shown_by_its_main_thread() -> None:
    trainer = ThreadTime(seconds=10.0, stages={"forward": 6.0, "python": 4.0})
    seen = replace(EMPTY, trainers=[trainer], optimizer_steps=120)
    shown = " ".join(shown_as_text(seen).split())
    assert shown.startswith("Cannot tell: 120 optimiser steps seen, but no loader.")
    assert "At 12 optimiser steps/s, the main thread's time was 60 % forward, 40 % python." in shown
    assert "The main thread, 120 optimiser steps" in shown
    page_words = re.sub(r"<[^>]+>", " ", document(seen))
    assert "The main thread, 120 optimiser steps" in page_words


def with_remedies(*named: dict[str, Any]) -> Diagnosis:
    usual: dict[str, Any] = {"gain": 2.5, "gain_low": 2.2, "gain_high": 2.8, "helps": True,
                             "why": "it is so"}  # fmt: skip
    predictions = [Prediction(samples_per_s=900.0, low=800.0, high=1000.0, **usual | one) for one in named]
    return replace(diagnose(made()), predictions=predictions)


def first_chart(page: Page) -> Remedies:
    assert page.verdict is not None and page.verdict.first is not None
    (chart,) = page.verdict.first.parts
    assert isinstance(chart, Remedies)
    return chart


def test_a_family_is_one_row_and_its_variants_are_folded_beneath() -> None:
    found = with_remedies(
        {"remedy": "num_workers=4", "family": "workers", "command": "DataLoader(…, num_workers=4)"},
        {"remedy": "shards of 256 px", "family": "shards", "needs": "2.7 GB of disk", "gain": 1.5, "gain_low": 1.31,
         "gain_high": 1.7, "changes": "the short side is 256 px", "command": "feedline prepare /data OUT"},
        {"remedy": "num_workers=6", "family": "workers", "command": "DataLoader(…, num_workers=6)", "gain": 2.1},
    )  # fmt: skip
    page = report(found)
    (first,) = first_chart(page).rows
    assert [one.remedy for one in first] == ["num_workers=4", "num_workers=6"]
    drawn = html.document(page)
    assert drawn.count("<details>") == 2 and "num_workers=6" in drawn.partition("<details>")[2]  # variants, workers
    for shown in (re.sub(r"</?d[^>]+>", " ", re.sub(r"</?span[^>]*>", "", drawn)), text(page)):
        flat = " ".join(unescape(shown).split())
        assert "needs 2.7 GB of disk" in flat and "changes the training: the short side is 256 px" in flat
        assert "DataLoader(…, num_workers=4)" in flat and "feedline prepare /data OUT" in flat
    assert drawn.count('<span class="label">shards of 256 px</span>') == text(page).count("shards of 256 px") == 1
    assert "2.5× (2.2–2.8) num_workers=4" in " ".join(text(page).split())
    assert "1.50× (1.31–1.70) shards of 256 px" in " ".join(text(page).split())


def test_a_run_that_nothing_helps_is_told_so() -> None:
    found = with_remedies({"remedy": "num_workers=4", "helps": False, "gain": 1.0})
    page = report(found)
    assert page.verdict is not None and page.verdict.first is None
    assert "Nothing that can be predicted would make this run notably faster." in text(page)


def test_a_gain_that_cannot_be_told_from_none_is_neither_help_nor_none() -> None:
    found = with_remedies(
        {"remedy": "num_workers=4", "helps": False, "gain": 1.4, "gain_low": 0.7, "gain_high": 2.1, "of_data": True},
        {"remedy": "channels_last", "helps": False, "gain": 1.0},
        {"remedy": "pin_memory=True", "helps": False, "gain": 1.4, "vain": True, "why": "nothing is copied"},
    )
    flat = " ".join(text(report(found)).split())
    may, _, vain = flat.partition("WHAT WOULD NOT HELP")
    assert "1.40× (0.70–2.1) num_workers=4" in may.partition("TRY THIS FIRST")[2]
    assert "channels_last: little or no gain (1×): it is so" in vain and "pin_memory=True: nothing is copied" in vain
    assert "Nothing that can be predicted" not in flat


def test_shards_that_gain_nothing_are_told_together() -> None:
    costs = ("one sample then takes 2 ms; the model is then the limit", "it takes 3 ms; the model is then the limit")
    shards = {"family": "shards", "helps": False, "gain": 1.0}
    forms = [{"remedy": f"shards {number}", "why": why, **shards} for number, why in enumerate(costs)]
    flat = " ".join(text(report(with_remedies(*forms))).split())
    assert "shards 0; shards 1: little or no gain: the model is then the limit" in flat


def test_what_may_help_a_loop_that_waits_is_to_be_tried_first() -> None:
    may = {"helps": False, "gain": 1.17, "gain_low": 0.98, "gain_high": 1.4, "of_data": True}
    named = [
        {"remedy": "num_workers=4", "family": "workers"}, {"remedy": "num_workers=2", "family": "workers"},
        {"remedy": "cheaper collate", "family": "stage"},
    ]  # fmt: skip
    found = with_remedies(*(one | may for one in named))
    assert found.bound == "data"
    for shown in (text(report(found)), re.sub(r"<[^>]+>", " ", html.document(report(found)))):
        first, _, others = " ".join(shown.split()).lower().partition("what else may help")
        assert "num_workers=2" in first.partition("try this first")[2] and "do this first" not in first
        assert "cheaper collate" in others and "num_workers=4" not in others
    alone = text(report(with_remedies(named[0] | may)))
    assert "TRY THIS FIRST" in alone and "MAY HELP" not in alone and "Nothing that can be" not in alone
    computing = text(report(replace(found, bound="compute")))
    assert "THIS FIRST" not in computing and "num_workers=2" in computing.partition("WHAT MAY HELP")[2]
    for other in ({"of_data": False}, {"effort": Effort.HARDWARE}):  # the model, or what is bought, cures no wait
        assert "THIS FIRST" not in text(report(with_remedies(named[0] | may | other)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "not measured (legs measure it)"),
        ({"legs": [Leg(name="cached", samples_per_s=[200.0] * 5)]}, "not claimed (see the notes)"),
        ({"legs": [Leg(name="cached", disturbed=5)]}, "not measured (see the notes)"),
        ({"notes": ["no legs: the script left its loop before enough was seen"]}, "not measured (see the notes)"),
    ],
)
def test_a_ceiling_that_is_missing_says_why(changed: dict[str, Any], said: str) -> None:
    """356 samples/s as it is: 200 with data for free is not believed."""
    seen = report(diagnose(made(**changed))).verdict
    assert seen is not None and dict(seen.figures)["ceiling, data for free"] == said


def test_a_loop_that_can_have_no_legs_is_not_told_to_run_with_them() -> None:
    seen = made(batch=1)
    seen = replace(seen, loaders=[replace(seen.loaders[0], kind="unwatched", num_workers=None, batch_size=None)])
    verdict = report(diagnose(seen)).verdict
    assert verdict is not None and dict(verdict.figures)["ceiling, data for free"] == "–"


def test_nothing_is_to_be_done_first_where_the_bound_cannot_be_told() -> None:
    told = with_remedies({"remedy": "num_workers=4"})
    for found in (replace(told, bound=None), diagnose(made(steps=7))):
        page = report(found)
        assert page.verdict is not None and page.verdict.first is None
        assert "DO THIS FIRST" not in text(page)
    shown = text(report(replace(told, bound=None)))
    assert "num_workers=4" in shown.partition("WHAT WOULD HELP, AS FAR AS IT CAN BE TOLD")[2]
    assert report(told).verdict is not None and "DO THIS FIRST" in text(report(told))


def test_what_may_help_can_be_tried_and_says_what_measures_it() -> None:
    """A model on the CPU whose channels_last is as is typical elsewhere."""
    seen = made(wait_s=0.001, compute_s=0.1, stages={"decode": 0.0001})
    may = " ".join(text(report(diagnose(seen))).split()).partition("WHAT MAY HELP")[2]
    assert "model = model.to(memory_format=torch.channels_last)" in may.partition("WHAT WOULD NOT HELP")[0]
    assert "--legs measure what channels_last gives" in may


def test_an_upper_bound_is_shown_as_one() -> None:
    found = with_remedies({"remedy": "cheaper transform Slow", "at_most": True, "gain_high": 9.0})
    page = report(found)
    assert "up to 9× cheaper transform Slow" in " ".join(text(page).split())
    assert "gives at most 3,240 samples/s" in " ".join(text(page).split())
    drawn = html.document(page)
    assert "<b>up to 9×</b>" in drawn and "2.2–9" not in drawn
    assert first_chart(page).most == 9.0


def test_every_share_has_its_error_or_says_that_it_is_not_known() -> None:
    seen = made()
    errors_s = [dict.fromkeys(worker.stages, 0.02 * worker.seconds) for worker in seen.workers]
    timed = [replace(one, stages_error_s=own) for one, own in zip(seen.workers, errors_s, strict=True)]
    assert "worker 0 4 ± 4 36 ± 4 18 ± 4" in " ".join(shown_as_text(replace(seen, workers=timed)).split())
    parts, errors = {"a": 0.25, "b": 0.5, "c": 0.0, "d": None}, {"a": 0.015, "b": 0.004, "c": None}
    chart = Stacks(total=Stack(label="all", parts=parts, errors=errors), title="t", unit="share")
    page = Page(title="", sections=[section("h", chart)])
    assert "a ███████▌ 25 % ± 3 b ███████████████ 50 % ± 0.8 d not known" in " ".join(text(page).split())
    assert "25 % ± 3" in html.document(page).replace("\u00a0", " ") and "?: not known" not in text(page)
    unsure = replace(chart, total=Stack(label="all", parts=parts, errors={"a": 0.015}))
    assert "(share, ± points: 95 % interval, ?: not known)" in text(Page(title="", sections=[section("h", unsure)]))
    assert "50 % ± ?" in text(Page(title="", sections=[section("h", unsure)]))
    none = replace(chart, total=Stack(label="all", parts=parts))
    assert "(share, errors not known)" in text(Page(title="", sections=[section("h", none)]))


def test_too_few_looks_leave_shares_unknown_and_scale_no_other() -> None:
    seen = made(wait_s=0.005, compute_s=0.045)
    flat = " ".join(shown_as_text(replace(seen, trainers=[replace(one, ticks=2) for one in seen.trainers])).split())
    assert "waiting for data ███ 10 % ± " in flat and "computing not known" in flat


def test_where_it_cannot_tell_no_colour_says_good_or_bad() -> None:
    assert 'class="verdict open"' in document(EMPTY)
    compared = versus(diagnose(noisy(0.080, 0.4)), diagnose(noisy(0.078, 0.4)))
    page = comparison([("A", diagnose(made())), ("B", diagnose(made()))], [compared])
    assert page.verdict is not None and page.verdict.tone == "open"


def test_a_loader_that_was_not_watched_is_counted_in_steps() -> None:
    seen = made(ceiling=50.0, batch=1)
    seen = replace(seen, loaders=[replace(seen.loaders[0], kind="unwatched", num_workers=None, batch_size=None)])
    verdict = report(diagnose(seen)).verdict
    assert verdict is not None
    assert dict(verdict.figures)["now"].startswith("11.1 steps/s")
    assert dict(verdict.figures)["ceiling, data for free"].startswith("50 steps/s")
    assert "Medians of the windows (steps/s, 95 % interval)" in shown_as_text(seen)
    assert "the same script reaches 50 steps/s" in " ".join(shown_as_text(seen).split())
    assert "None" not in shown_as_text(seen)


def test_legs_that_scatter_or_were_disturbed_say_so() -> None:
    legs = [Leg(name="cached", samples_per_s=[167.0, 3677.0, 683.0]), Leg(name="normal", disturbed=3)]
    flat = " ".join(shown_as_text(replace(made(), legs=legs)).split())
    assert "windows too far apart to mean anything: 167–3,677" in flat
    assert "3 windows beside other programs left out" in flat


def test_terminal_codes_do_not_reach_the_terminal() -> None:
    seen = replace(made(), notes=["\x1b[2Jgone"])
    assert "\x1b" not in shown_as_text(seen)


@pytest.mark.parametrize(("share", "drawn"), [(0, "    "), (1, "████"), (0.5, "██  "), (0.53, "██▏ "), (7, "████")])
def test_bars_of_blocks(share: float, drawn: str) -> None:
    assert bar(share, 4) == drawn


# --- the trace ----------------------------------------------------------------------------------------


def test_the_trace_obeys_the_format() -> None:
    """The Trace Event Format's object form, as importers check it."""
    seen = rich()
    document = json.loads(json.dumps(trace(seen)))
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        assert {"name", "ph", "ts", "pid", "tid"} <= set(event)
        assert event["ph"] in ("X", "C", "M")
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and event["args"]["name"]
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert sum(event["name"] == "training step" for event in slices) == len(seen.steps)


def test_slices_nest() -> None:
    """An importer drops a slice that sticks out of the one it began in."""
    steps = [
        Step(start_s=i * 0.1, wait_s=0.04, duration_s=0.1, copy_s=0.03, backward_s=0.05, samples=8) for i in range(9)
    ]
    stack: list[tuple[float, float]] = []
    for event in trace(replace(made(), steps=steps))["traceEvents"]:
        if event["ph"] != "X":
            continue
        start, end = event["ts"], event["ts"] + event["dur"]
        while stack and stack[-1][1] <= start + 1e-3:
            stack.pop()
        assert not stack or (stack[-1][0] <= start and end <= stack[-1][1] + 1e-3)
        stack.append((start, end))


def test_unknown_values_are_no_counters() -> None:
    counters = [
        event for event in trace(rich())["traceEvents"] if event["ph"] == "C" and "sm_active" in event["name"]
    ]
    assert len(counters) == 11


# --- comparison ---------------------------------------------------------------------------------------


def noisy(wait_s: float, jitter: float) -> Recording:
    seen = made(wait_s=wait_s, compute_s=0.02, steps=64)
    wobble = [(-1) ** (index // 6) * jitter for index in range(64)]
    steps = [
        replace(s, wait_s=s.wait_s * (1 + w), duration_s=s.duration_s + s.wait_s * w)
        for s, w in zip(seen.steps, wobble, strict=True)
    ]
    return replace(seen, steps=steps)


def test_a_real_difference_is_said_with_its_interval() -> None:
    found = versus(diagnose(noisy(0.08, 0.1)), diagnose(noisy(0.02, 0.1)), ("before", "after"))
    assert found.ratio == pytest.approx(2.5, rel=0.05)
    assert found.low is not None and found.low > 1.5
    assert found.statement.startswith("after is 2.5× as fast as before (95 % interval")
    assert any("waiting for data went from 80 % to 50 %" in change for change in found.changes)


def test_noise_is_called_noise() -> None:
    found = versus(diagnose(noisy(0.080, 0.4)), diagnose(noisy(0.078, 0.4)))
    assert found.low is not None and found.high is not None and found.low < 1 < found.high
    assert found.statement.startswith("No difference between A and B can be told from noise")


def test_a_recording_without_a_rate_cannot_be_compared() -> None:
    found = versus(diagnose(EMPTY), diagnose(made()))
    assert found.ratio is None and found.statement == "A has no measured rate."


def test_the_comparison_is_shown_as_text_and_page() -> None:
    named = [("slow", diagnose(made(wait_s=0.08))), ("fast", diagnose(made(wait_s=0.01)))]
    compared = [versus(named[0][1], named[1][1], ("slow", "fast"))]
    assert compared[0].statement.partition(" (")[0] in text(comparison(named, compared)).replace("\n", " ")
    assert "svg" in Balanced(html.document(comparison(named, compared))).tags


def test_two_chars_are_joined() -> None:
    shown: Any = html.together("82 % of 3 %")
    assert shown == "82\u00a0% of 3\u00a0%"


def test_the_gpu_is_drawn_over_time_beside_what_the_loop_waits_with_the_source_of_each_number() -> None:
    seen = made(wait_s=0.05, starved_s=0.03, compute_s=0.05, steps=20, device="cuda:0")
    told = {"sm_active": ("fraction", "nvml gpm 2"), "memory_used_bytes": ("B", "nvml memory"),
            "pcie_rx_bytes_per_s": ("B/s", "nvml gpm 21"), "memory_total_bytes": ("B", "nvml memory")}  # fmt: skip
    series = [Series(name=name, unit=unit, scope="gpu:GPU-7", source=source, t_s=[1.0, 2.0], values=[0.5, 0.5])
              for name, (unit, source) in told.items()]  # fmt: skip
    of_host = Series(
        name="cpu_cores", unit="cores", scope="trainer", source="/proc", t_s=[1.0, 2.0], values=[1.0, 1.0]
    )
    seen = replace(seen, series=[*series, of_host], gpus=[Gpu(uuid="GPU-7", index=3)])
    sections = {one.heading: one for one in report(diagnose(seen)).sections if one is not None}
    charts = {part.title: part for part in sections["The GPU over time"].parts if isinstance(part, Curves)}
    assert list(charts) == ["Waiting for data", "SM active", "Memory used", "PCIe, to the GPU"]
    dry, waits = charts["Waiting for data"].curves
    assert {y for _, y in dry.points} == {30.0} and {y for _, y in waits.points} == {50.0}
    assert "CUDA events" in charts["Waiting for data"].note
    for title, source in (("SM active", "nvml gpm 2"), ("PCIe, to the GPU", "nvml gpm 21")):
        assert charts[title].note == f"Source: {source}" and charts[title].curves[0].name == "GPU 3"
    assert [part.title for part in sections["Resources"].parts if isinstance(part, Curves)] == ["Processor"]
    assert "The GPU over time" in document(seen)
    assert "The GPU over time" not in document(made())
