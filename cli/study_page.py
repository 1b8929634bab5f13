"""A study's page: of a sweep all trials, the best, what mattered; of pruning the accuracy over the share of weights
kept. Pure: from the record that `--json` has."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from feedline.pipeline.base.text import count_of
from feedline.profiling.record import units
from feedline.profiling.render.sections import (
    Axis,
    Bar,
    Bars,
    Coordinates,
    Curve,
    Curves,
    Facts,
    Page,
    Points,
    Section,
    Table,
    Verdict,
    section,
)

Row = Mapping[str, Any]
STATES = {
    "complete": "to the end",
    "pruned": "ended early",
    "failed": "failed",
    "running": "running",
    "open": "to do",
}


def sweep_page(record: Row) -> Page:
    trials, best = record["trials"], record["best"]
    words = "No trial is complete yet"
    if best:
        words = f"Top-1 {units.percent(best['value'])} with {settings(best['params'])}"
    counted = ", ".join(f"{number} {STATES[state]}" for state, number in record["counts"].items())
    share = units.percent(record["epochs"] / max(record["full_epochs"], 1))
    evidence = [
        f"{count_of(len(trials), 'trial')}: {counted}.",
        f"{record['epochs']:,} epochs were trained, {share} of what all trials to the end would have taken.",
        "Every trial has the same seed: before a small lead is believed, train the best again with others.",
    ]
    return Page(
        title=f"Sweep: {record['study']}",
        verdict=Verdict(words=words, evidence=evidence, tone="good" if best else "open"),
        sections=[
            learning(record),
            mattered(record["importance"]),
            section("Every trial, across its settings", coordinates(record)),
            section("Every trial", trials_table(record)),
            troubles(trials),
            section("Time and cost", Facts(cost(record))),
        ],
        kicker="feedline sweep",
    )


def settings(params: Row) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in params.items() if value is not None)


def shown(value: Any) -> str:
    return units.number(value) if isinstance(value, float) else str(value)


def ended(record: Row) -> list[Row]:
    """Trials that have a value, the best of those that went to the end last."""
    known = [trial for trial in record["trials"] if trial["value"] is not None]
    return sorted(known, key=lambda trial: (trial["state"] == "complete", trial["value"]))


def learning(record: Row) -> Section | None:
    best = record["best"]
    curves = [
        Curve(
            name=f"{trial['name']}: {settings(trial['params'])}",
            points=[(epoch, 100 * top1) for epoch, top1 in trial["curve"]],
            faint=best is None or trial["number"] != best["number"],
        )
        for trial in ended(record)
    ]
    chart = Curves(curves=curves, title="Validation accuracy: the best trial, in grey all others", y_unit="%",
                   x_unit="epochs", y_max=100.0)  # fmt: skip
    return section("Learning", chart if curves else None)


def mattered(importance: Row) -> Section | None:
    rows = [Bar(label=name, value=100 * share) for name, share in importance.items()]
    note = "By PED-ANOVA: how far the settings of the best tenth of the trials differ from those of all."
    chart = Bars(rows=rows, title="Importance", unit="%", value_name="share", note=note)
    return section("What mattered", chart if rows else None)


def coordinates(record: Row) -> Coordinates | None:
    """Lines are the stronger the better the trial ended."""
    space, trials = record["space"], ended(record)
    top = [trial["value"] for trial in trials]
    if not trials:
        return None
    axes = [Axis(name=name, ticks=ticks(where)) for name, where in space.items()]
    percents = [(place, units.percent(place)) for place in (0.0, 0.5, 1.0)]
    lines = [
        (f"{trial['name']}: top-1 {units.percent(trial['value'])}, {settings(trial['params'])}",
         sum(value <= trial["value"] for value in top) / len(top),
         [*(place(where, trial["params"].get(name)) for name, where in space.items()), trial["value"]])
        for trial in trials
    ]  # fmt: skip
    return Coordinates(
        axes=[*axes, Axis(name="top-1", ticks=percents)], lines=lines, title="Settings and accuracy",
        note="A line is a trial, the stronger the better it ended; the best one stands out.",
    )  # fmt: skip


def place(where: Row, value: Any) -> float | None:
    """Of a value on its axis, from 0 to 1."""
    if value is None:
        return None
    if "values" in where:
        choices = [str(_listed(choice)) for choice in where["values"]]
        value = str(_listed(value))
        return choices.index(value) / max(len(choices) - 1, 1) if value in choices else None
    scale = math.log if where["log"] else float
    low, high = scale(where["low"]), scale(where["high"])
    return (scale(value) - low) / (high - low)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def ticks(where: Row) -> list[tuple[float, str]]:
    if "values" in where:
        return [(place(where, choice) or 0.0, str(choice)) for choice in where["values"]]
    low, high = where["low"], where["high"]
    middle = math.sqrt(low * high) if where["log"] else (low + high) / 2
    return [(at, units.number(value, 2)) for at, value in zip((0.0, 0.5, 1.0), (low, middle, high), strict=True)]


def trials_table(record: Row) -> Table | None:
    trials, names = ended(record)[::-1], list(record["space"])
    rows = [
        (trial["name"], units.percent(trial["value"]), STATES[trial["state"]], len(trial["curve"]),
         *(shown(trial["params"].get(name)) for name in names), units.seconds(trial["seconds"]))
        for trial in trials
    ]  # fmt: skip
    headers = ("trial", "top-1", "", "epochs", *names, "time")
    numeric = (1, 3, *range(4, len(headers)))
    return Table(headers=headers, rows=rows, numeric=numeric, emphasised=(0,) if record["best"] else ())


def troubles(tasks: Sequence[Row]) -> Section | None:
    """Tasks that failed, diverged or had to be begun again, by name."""
    said = [
        f"{task['name']} ({STATES[task['state']]}, {count_of(task['attempts'], 'attempt')}): {task['error']}"
        for task in tasks
        if task.get("error")
    ]
    again = [task["name"] for task in tasks if task["attempts"] > 1 and not task.get("error")]
    said += [f"Begun again after a failure or a kill: {', '.join(again)}."] if again else []
    return section("Troubles", Points(said) if said else None)


def cost(record: Row) -> dict[str, str]:
    hosts = {trial["host"] for trial in record["trials"] if trial.get("host")}
    return {
        "training, all trials": units.seconds(record["train_s"]),
        "core time": units.seconds(record["core_s"]),
        "epochs": f"{record['epochs']:,} of {record['full_epochs']:,}",
        "hosts": ", ".join(sorted(hosts)) or units.UNKNOWN,
    }


# --- pruning ------------------------------------------------------------------------------------------

CURVES = {None: "winning tickets", "random": "random masks", "full": "full network"}
"""By control, as in the table."""


def sparsity_chart(tasks: Sequence[Row]) -> Curves | None:
    """Accuracy over the share of weights that are cut: a curve for each rewind epoch and control, with the spread
    over seeds; the full network, of which nothing is cut, is a level beside them. `tasks`: `keep`, `rewind`,
    `control` (None: a winning ticket), `top1` (None: it has none yet)."""
    groups: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    known = [task for task in tasks if task["top1"] is not None]
    cuts = [100 * (1 - task["keep"]) for task in known if task["control"] != "full"]
    for task in known:
        curve = groups[f"{CURVES[task['control']]}, rewound to epoch {task['rewind']}"]
        level = {min(cuts), max(cuts)} if cuts and task["control"] == "full" else {100 * (1 - task["keep"])}
        for cut in level:
            curve[cut].append(100 * task["top1"])
    curves = [
        Curve(name=name, points=[(x, sum(ys) / len(ys)) for x, ys in sorted(points.items())],
              intervals=[(min(ys), max(ys)) for _, ys in sorted(points.items())])
        for name, points in groups.items()
    ]  # fmt: skip
    chart = Curves(curves=curves, title="Accuracy over sparsity", y_unit="top-1, %", x_unit="% of the weights cut",
                   interval="smallest and largest over seeds", y_max=100.0)  # fmt: skip
    return chart if curves else None
