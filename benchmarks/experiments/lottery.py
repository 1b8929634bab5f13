"""Do winning tickets win? A network that has learnt is pruned, set back and trained again beside random masks.

    feedline synth PICTURES --images 8000 --classes 20 --layout folder
    feedline prepare PICTURES OUT --output 64:raw
    python -m feedline.benchmarks.experiments.lottery OUT --work DIR [--keep 0.4 0.2 0.1 0.05 0.02 --rewind 0 1
        --seeds 3 --jobs 2 --epochs 9 --model small_cnn --image-size 32 --lr 0.0175]

By default 66 trainings of nine or eight epochs (3 seeds × 2 epochs to go back to × (5 shares kept × 2 kinds of mask +
the full network)): by other experiments' rates some 20 s each, two at a time, so a quarter of an hour on two cores.
Ended before, the same command goes on. It checks what `feedline prune` promises, with the files it left behind:

- as many weights stay as were asked for, the largest of the final ones; a random mask keeps as many in each layer;
- a training begins with the kept epoch's weights bit for bit, and what is cut is +0 then and at its end;
- the full network with the run's own seed ends, from every kept epoch, in the run's own weights bit for bit.

Writes results/lottery.json and lottery.html, the page that `prune` drew; ends with 1 where a promise is broken.
"""

import json
import shutil
import statistics
import subprocess
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feedline.benchmarks.commands import FEEDLINE
from feedline.benchmarks.experiments.harness import end_with, mean, options, say, show, write
from feedline.pipeline.base.errors import FeedlineError
from feedline.train import checkpoint, masks
from feedline.train.checkpoint import Checkpoints, State
from feedline.train.config import TrainConfig
from feedline.train.loop import train
from feedline.train.study.prune import MASK, PruneConfig, Pruning, Ticket, twin

RUN, STUDY, RECORD, BEGUN = "run", "study", "prune.json", "begun"
Figures = dict[str, Any]


def main() -> None:
    given = options(__doc__, "lottery.json", "dataset", "--work", keep=(0.4, 0.2, 0.1, 0.05, 0.02), rewind=(0, 1),
                    seeds=3, jobs=2, epochs=9, model="small_cnn", image_size=32, batch_size=32, lr=0.0175,
                    weight_decay=2e-4)  # fmt: skip
    settings: Figures = {
        "model": given.model, "image_size": given.image_size, "epochs": given.epochs, "batch_size": given.batch_size,
        "lr": given.lr, "weight_decay": given.weight_decay, "num_workers": 1, "threads": 1,
    }  # fmt: skip
    parent = train(TrainConfig(
        **settings, dataset=given.dataset.resolve(), run=given.work / RUN, resume="auto", tensorboard=False,
        keep_epochs=tuple(given.rewind), keep_last=1, eval_every=given.epochs,
    ))  # fmt: skip
    say(f"the network to prune: {parent['epochs'][-1]['top1']:.1%}")
    tasks = pruned(given)
    figures: Figures = {
        "settings": {**settings, "dataset": given.dataset.name, "seeds": given.seeds},
        "parent_top1": parent["epochs"][-1]["top1"],
        "weights": tasks[0]["weights"],
        "task_s": sum(task["seconds"] for task in tasks) / len(tasks),
        "cells": cells(tasks),
        "ticket_minus_random": gaps(tasks),
        "checks": checks(given, tasks),
    }
    write(given.out, figures)
    shutil.copyfile(given.work / STUDY / "study.html", given.out.with_suffix(".html"))
    show_table(figures)
    if broken := [name for name, check in figures["checks"].items() if check["broken"]]:
        raise FeedlineError(f"not as promised: {', '.join(broken)} (the tasks are named in {given.out})")


def pruned(given: Namespace) -> list[Figures]:
    """The tasks of `feedline prune`, all of them done. In the work folder, so that the page names no other."""
    lists = {"--keep": given.keep, "--rewind": given.rewind, "--seeds": [given.seeds], "--jobs": [given.jobs]}
    words = [word for flag, values in lists.items() for word in (flag, ",".join(map(str, values)))]
    command = [*FEEDLINE, "prune", RUN, "--study", STUDY, "--json", RECORD, *words]
    subprocess.run(command, cwd=given.work, check=True)
    tasks: list[Figures] = json.loads((given.work / RECORD).read_text())["tasks"]
    if undone := [task["name"] for task in tasks if task["state"] != "complete"]:
        raise FeedlineError(f"{len(undone)} tasks did not end, {undone[0]} first: see {given.work / STUDY}")
    return tasks


# --- what came of it ----------------------------------------------------------------------------------


def top1s(tasks: Iterable[Figures]) -> dict[tuple[int, float, str], list[float]]:
    """By epoch rewound to, share kept and kind of mask; in the order of the seeds."""
    found: dict[tuple[int, float, str], list[float]] = {}
    for task in sorted(tasks, key=lambda task: task["seed"]):
        found.setdefault((task["rewind"], task["keep"], task["control"] or "ticket"), []).append(task["top1"])
    return found


def cells(tasks: Sequence[Figures]) -> list[Figures]:
    return [
        {"rewind": rewind, "keep": keep, "control": control, "mean": statistics.mean(values), "low": min(values),
         "high": max(values), "top1": values}
        for (rewind, keep, control), values in top1s(tasks).items()
    ]  # fmt: skip


def gaps(tasks: Sequence[Figures]) -> list[Figures]:
    """Mean over the seeds, each seed's ticket against its own random mask, and the mean's 95 % interval."""
    known, found = top1s(tasks), list[Figures]()
    for rewind, keep, control in known:
        if control == "ticket":
            pairs = zip(known[rewind, keep, control], known[rewind, keep, "random"], strict=True)
            ahead = mean([ticket - random for ticket, random in pairs])
            found.append({"rewind": rewind, "keep": keep, **ahead.record("mean")})
    return found


def show_table(figures: Figures) -> None:
    by_cell = {(cell["rewind"], cell["keep"], cell["control"]): cell for cell in figures["cells"]}
    rows: list[tuple[str, ...]] = []
    for gap in figures["ticket_minus_random"]:
        rewind, keep = gap["rewind"], gap["keep"]
        kinds = ((keep, "ticket"), (keep, "random"), (1.0, "full"))
        three = [by_cell[rewind, share, control] for share, control in kinds]
        ends = "" if gap["low"] is None else f" ({100 * gap['low']:+.1f} to {100 * gap['high']:+.1f})"
        spread = [f"{one['mean']:.1%} ({100 * one['low']:.1f}–{100 * one['high']:.1f})" for one in three]
        rows.append((f"epoch {rewind}, {keep:.0%} kept", *spread, f"{100 * gap['mean']:+.1f}{ends}"))
    show(("set back to", "tickets", "random masks", "full network", "tickets − random, points"), rows)


# --- what was promised --------------------------------------------------------------------------------


def checks(given: Namespace, tasks: Sequence[Figures]) -> dict[str, Figures]:
    """Of each promise, how many tasks were looked at, and which broke it."""
    where = PruneConfig(run=given.work / RUN, study=given.work / STUDY, keep=tuple(given.keep),
                        rewind=tuple(given.rewind), seeds=given.seeds)  # fmt: skip
    pruning = Pruning(given.work / STUDY, where)
    found: dict[str, Figures] = {}
    for ticket, task in zip(pruning.tickets, tasks, strict=True):
        for name, kept in promises(pruning, ticket, task, given.work).items():
            check = found.setdefault(name, {"looked_at": 0, "broken": []})
            check["looked_at"] += 1
            check["broken"] += [] if kept else [ticket.name]
    return found


def promises(pruning: Pruning, ticket: Ticket, task: Figures, work: Path) -> dict[str, bool]:
    """Which hold of one task's mask and weights."""
    folder = work / STUDY / "runs" / ticket.name
    mask = masks.read(folder / MASK)
    kept, final = checkpoint.read(pruning.parent.kept[ticket.rewind]), checkpoint.read(pruning.parent.final)
    ended, begun = (
        checkpoint.read(Checkpoints(folder).steps()[-1]),
        begin_again(pruning, ticket, folder / MASK, work / BEGUN),
    )
    weights, stay = sum(one.numel() for one in mask.values()), sum(int(one.sum()) for one in mask.values())
    ends = {name: ended["model"][name] for name in mask}
    set_back = {name: value.masked_fill(~mask[name], 0.0) if name in mask else value
                for name, value in kept["model"].items()}  # fmt: skip
    held = {
        "as many weights stay as were asked for": stay == round(ticket.keep * weights),
        "the record counts as many zeros as are cut": task["zeros"] == task["pruned"] == weights - stay,
        "what is cut is +0 at the end": not any(bits(of[~mask[name]]).strip(b"\0") for name, of in ends.items()),
        "begins with the kept weights bit for bit": same(begun["model"], set_back),
    }
    if ticket.control is None:
        sizes_N = torch.cat([final["model"][name].abs().flatten() for name in mask])
        stays_N = torch.cat([one.flatten() for one in mask.values()])
        held["the largest stay"] = bool(sizes_N[stays_N].min() >= sizes_N[~stays_N].max())
    elif ticket.control == "random":
        beside = masks.read(twin(ticket, folder))
        held["random masks keep as many of each layer"] = {name: int(one.sum()) for name, one in mask.items()} == {
            name: int(one.sum()) for name, one in beside.items()
        }
    elif ticket.seed == pruning.parent.config.seed:
        held["the full network ends as the run did"] = same(ended["model"], final["model"])
    return held


def begin_again(pruning: Pruning, ticket: Ticket, mask: Path, scratch: Path) -> State:
    """What the task's training began with: it is begun once more, keeps that and takes one step at most."""
    shutil.rmtree(scratch, ignore_errors=True)
    train(replace(
        pruning.config, run=scratch, mask=mask, rewind=pruning.parent.kept[ticket.rewind], seed=ticket.seed,
        resume=None, keep_epochs=(ticket.rewind,), steps=1, eval_every=0, num_workers=0,
    ))  # fmt: skip
    return checkpoint.read(Checkpoints(scratch).kept()[ticket.rewind])


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def same(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """To the bit, whatever the layout in memory."""
    return some.keys() == others.keys() and all(bits(some[name]) == bits(others[name]) for name in some)


if __name__ == "__main__":
    end_with(main)
