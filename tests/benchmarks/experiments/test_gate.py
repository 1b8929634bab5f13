"""The regression gate: a planted slowdown is named, the same speed measured again is not, noise included."""

import random
import sys
from pathlib import Path

import pytest

from feedline.benchmarks.experiments import gate
from feedline.benchmarks.measure.window import Window

RATES = {"as-is": 400.0, "shards": 900.0, "loader": 1400.0, "raw": 2600.0, "ceiling": 3000.0}
NOISE = 0.05


def measured(seed: int, loader: float = 1.0) -> gate.Ratios:
    """As `gate.measure` says it, on a machine that drifts; feedline's loader at `loader` of its speed."""
    rng = random.Random(seed)
    drift = [rng.uniform(0.5, 1.0) for _ in range(gate.ROUNDS)]
    speed = {**RATES, "loader": RATES["loader"] * loader}
    windows = {
        key: [window(rate * now * rng.lognormvariate(0, NOISE)) for now in drift] for key, rate in speed.items()
    }
    return {name: gate.ratio(windows[a], windows[b]) for a, b, name in gate.RATIOS}


def window(rate: float) -> Window:
    return Window(
        samples=round(100 * rate), seconds=100.0, batches=9, wait_s=1.0, trainer_cpu_s=1.0, worker_cpu_s=1.0
    )


def run_gate(monkeypatch: pytest.MonkeyPatch, ratios: gate.Ratios, *words: str) -> int:
    def once(work: Path) -> gate.Ratios:
        return ratios

    monkeypatch.setattr(gate, "measure", once)
    monkeypatch.setattr(sys, "argv", ["gate", *words])
    return gate.main()


def test_a_planted_slowdown_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = ("--out", str(tmp_path / "gate.json"))
    assert run_gate(monkeypatch, measured(0), "--update", "--strict", *mine) == 0
    assert (tmp_path / "gate.json").exists()
    assert run_gate(monkeypatch, measured(1), "--strict", *mine) == 0
    assert "SLOWER" not in capsys.readouterr().out
    slowed = measured(2, loader=0.7)
    assert run_gate(monkeypatch, slowed, "--strict", *mine) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "SLOWER" in line]
    assert len(lines) == 1 and lines[0].startswith("feedline's loader by stock webdataset")
    assert run_gate(monkeypatch, slowed, *mine) == 0  # a person decides


def test_it_hardly_ever_cries_wolf() -> None:
    pairs = [(measured(seed), measured(1000 + seed)) for seed in range(150)]
    cried = sum(gate.is_slower(new[name], old[name]) for old, new in pairs for name in old)
    assert cried <= 2
