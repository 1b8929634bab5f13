"""The curves of one training run as a page that works offline, from the events in its metrics.jsonl."""

from pathlib import Path

from feedline.cli.common import write
from feedline.profiling.render.html import document
from feedline.profiling.render.sections import Code, Curve, Curves, Page, Section, section
from feedline.train import terminal
from feedline.train.metrics import Event, read_events

PAGE = "curves.html"


def write_page(run: Path) -> Path:
    """RUN/curves.html, from the run's own journal. Raises UsageError where it cannot be written."""
    path = run / PAGE
    write(path, document(train_page(run)))
    return path


def train_page(run: Path) -> Page:
    steps, epochs = last_of_each(read_events(run, "step")), last_of_each(read_events(run, "epoch"))
    ends, starts = read_events(run, "end"), read_events(run, "start")
    return Page(
        title=f"Training: {run.name}",
        subtitle=terminal.opening(starts[-1]).partition("\n")[0] if starts else "",
        sections=[
            _learning(steps, epochs),
            _speed(steps),
            _resources(read_events(run, "resources")),
            section("Summary", Code(terminal.summary(ends[-1]))) if ends else None,
        ],
    )


def last_of_each(events: list[Event]) -> list[Event]:
    """A step that was done again after a restart counts once, as it was done last."""
    return [event for _, event in sorted({event["step"]: event for event in events}.items())]


def _learning(steps: list[Event], epochs: list[Event]) -> Section | None:
    losses = [_curve("training loss", steps, "loss"), _curve("validation loss", epochs, "val_loss")]
    accuracy = [_curve("top-1", epochs, "top1", 100), _curve("top-5", epochs, "top5", 100)]
    evaluated = any(y is not None for one in accuracy for _, y in one.points)
    return section(
        "Learning",
        Curves(curves=losses, title="Loss", y_unit="nats a sample", x_unit="steps"),
        Curves(curves=accuracy, title="Validation accuracy", y_unit="%", x_unit="steps", y_max=100.0)
        if evaluated
        else None,
        Curves(curves=[_curve("learning rate", steps, "lr")], title="Learning rate", y_unit="", x_unit="steps"),
    )


def _speed(steps: list[Event]) -> Section | None:
    rate, wait = _curve("samples/s", steps, "samples_per_s"), _curve("wait", steps, "wait_fraction", 100)
    blocked = "Share of the time blocked on the next batch"
    return section(
        "Speed",
        Curves(curves=[rate], title="Throughput", y_unit="samples/s", x_unit="steps"),
        Curves(curves=[wait], title=blocked, y_unit="%", x_unit="steps"),
    )


RESOURCES = (
    ("CPU", "cores in use", "cpu_cores", 1.0),
    ("Memory", "MiB", "memory_bytes", 2**-20),
    ("GPU: SM active", "%", "gpu_sm_active", 100.0),
    ("GPU: time with a kernel running", "%", "gpu_utilization", 100.0),
)


def _resources(watched: list[Event]) -> Section | None:
    charts = [
        Curves(curves=[_curve(title, watched, key, factor, x="at_s")], title=title, y_unit=unit)
        for title, unit, key, factor in RESOURCES
        if any(key in event for event in watched)
    ]
    return section("Resources of the first rank and its workers", *charts)


def _curve(name: str, events: list[Event], key: str, factor: float = 1.0, *, x: str = "step") -> Curve:
    known = [(float(event[x]), event.get(key)) for event in events]
    return Curve(name=name, points=[(at, None if value is None else value * factor) for at, value in known])
