"""The curves of one training run as a page that works offline, from the events in its metrics.jsonl."""

from collections.abc import Sequence
from pathlib import Path

from feedline.cli.common import write
from feedline.profiling.render import page, plots
from feedline.profiling.render.markup import Markup
from feedline.profiling.render.plots import Series
from feedline.train import terminal
from feedline.train.metrics import Event, read_events

Points = Sequence[tuple[float, float | None]]
PAGE = "curves.html"


def write_page(run: Path) -> Path:
    """RUN/curves.html, from the run's own journal. Raises UsageError where it cannot be written."""
    path = run / PAGE
    write(path, render(run))
    return path


def render(run: Path) -> Markup:
    steps, epochs = last_of_each(read_events(run, "step")), last_of_each(read_events(run, "epoch"))
    ends, starts = read_events(run, "end"), read_events(run, "start")
    parts = [page.section("Learning", *_learning(steps, epochs)), page.section("Speed", *_speed(steps))]
    if watched := read_events(run, "resources"):
        parts.append(page.section("Resources of the first rank and its workers", *_resources(watched)))
    if ends:
        parts.append(page.section("Summary", page.code(terminal.summary(ends[-1]))))
    subtitle = terminal.opening(starts[-1]).partition("\n")[0] if starts else ""
    return page.page(f"Training: {run.name}", *parts, subtitle=subtitle)


def last_of_each(events: list[Event]) -> list[Event]:
    """A step that was done again after a restart counts once, as it was done last."""
    return [event for _, event in sorted({event["step"]: event for event in events}.items())]


def _learning(steps: list[Event], epochs: list[Event]) -> list[Markup]:
    charts = [
        plots.lines(
            [
                Series(name="training loss", points=_over_steps(steps, "loss")),
                Series(name="validation loss", points=_over_steps(epochs, "val_loss")),
            ],
            title="Loss",
            y_unit="nats a sample",
            x_unit="steps",
        ),
        plots.lines([Series(name="learning rate", points=_over_steps(steps, "lr"))], title="Learning rate",
                    y_unit="", x_unit="steps", height_px=110),
    ]  # fmt: skip
    accuracy = [Series(name=name, points=_over_steps(epochs, key, 100)) for name, key in _ACCURACIES]
    if any(y is not None for one in accuracy for _, y in one.points):
        charts.insert(1, plots.lines(accuracy, title="Validation accuracy", y_unit="%", x_unit="steps", y_max=100.0))
    return charts


_ACCURACIES = (("top-1", "top1"), ("top-5", "top5"))


def _speed(steps: list[Event]) -> list[Markup]:
    return [
        plots.lines([Series(name="samples/s", points=_over_steps(steps, "samples_per_s"))], title="Throughput",
                    y_unit="samples/s", x_unit="steps"),
        plots.lines([Series(name="wait", points=_over_steps(steps, "wait_fraction", 100))],
                    title="Share of the time blocked on the next batch", y_unit="%", x_unit="steps", height_px=110),
    ]  # fmt: skip


def _resources(watched: list[Event]) -> list[Markup]:
    def chart(title: str, unit: str, key: str, factor: float) -> Markup:
        points = [(event["at_s"], event[key] * factor if key in event else None) for event in watched]
        return plots.lines([Series(name=title, points=points)], title=title, y_unit=unit, height_px=130)

    charts = [chart("CPU", "cores in use", "cpu_cores", 1), chart("Memory", "MiB", "memory_bytes", 2**-20)]
    if any("gpu_sm_active" in event for event in watched):
        charts.append(chart("GPU: SM active", "%", "gpu_sm_active", 100))
    if any("gpu_utilization" in event for event in watched):
        charts.append(chart("GPU: time with a kernel running", "%", "gpu_utilization", 100))
    return charts


def _over_steps(events: list[Event], key: str, factor: float = 1.0) -> Points:
    known = [(event["step"], event.get(key)) for event in events]
    return [(float(step), None if value is None else value * factor) for step, value in known]
