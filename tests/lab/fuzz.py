"""A million hostile inputs for each reader, found by coverage; none may crash, hang, swell or deceive.

    python -m tests.lab.fuzz --work DIR                     100,000 more inputs for each target
    python -m tests.lab.fuzz jpeg tar --runs 1000000 --work DIR

Needs atheris (libFuzzer for Python; not among feedline's own dependencies), beside feedline in one environment. Each
target runs in a process of its own: at most 10 s an input, 2 GiB of memory. The corpus stays in DIR, so stretches add
up; results/fuzz.json holds the totals: inputs, findings, inputs per second, edges covered. The checks themselves
are in `fuzz_targets`; tests/lab/test_fuzz.py runs them shortly with hypothesis and over all former findings.
"""

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz.json"
TARGET_NAMES = ("tar", "jpeg", "manifest", "index", "recording", "lprof")
MOST_S_PER_INPUT = 10
MOST_MEMORY_MIB = 2048
MOST_FINDINGS = 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(TARGET_NAMES), help=", ".join(TARGET_NAMES))
    parser.add_argument("--runs", type=int, default=100_000, help="inputs per target in this stretch")
    parser.add_argument("--work", type=Path, required=True, help="corpora and findings are kept here")
    parser.add_argument("--seconds", type=int, default=480, help="at most, per target")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--inside", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.inside is not None:
        inside(said.targets[0], said.inside)
    record = json.loads(said.out.read_text()) if said.out.exists() else {"targets": {}}
    for name in said.targets:
        stretch = fuzz(name, said.runs, said.seconds, said.work / name)
        record["targets"][name] = add(record["targets"].get(name), stretch)
        said.out.write_text(json.dumps(describe(record), indent=1) + "\n")
        print(f"{name}: {json.dumps(record['targets'][name])}", flush=True)
    sys.exit(any(one["open_findings"] for one in record["targets"].values()))


def describe(record: dict[str, Any]) -> dict[str, Any]:
    from feedline.profiling.record.host import describe_host

    command = "python -m tests.lab.fuzz --work DIR --runs N"
    return {"command": command, "host": describe_host(), "targets": record["targets"]}


def add(before: dict[str, Any] | None, stretch: dict[str, Any]) -> dict[str, Any]:
    """Totals over all stretches. `open_findings` are those of the last stretch: what was found earlier is fixed or
    found again."""
    before = before or {"inputs": 0, "seconds": 0.0, "findings": 0, "stretches": 0}
    inputs, seconds = before["inputs"] + stretch["inputs"], before["seconds"] + stretch["seconds"]
    return {
        "inputs": inputs,
        "seconds": round(seconds, 1),
        "inputs_per_s": round(inputs / seconds) if seconds else None,
        "stretches": before["stretches"] + 1,
        "edges": stretch["edges"],
        "corpus": stretch["corpus"],
        "peak_memory_mib": max(before.get("peak_memory_mib", 0), stretch["peak_memory_mib"]),
        "findings": before["findings"] + len(stretch["findings"]),
        "open_findings": stretch["findings"],
    }


def fuzz(name: str, runs: int, seconds: int, work: Path) -> dict[str, Any]:
    """One stretch: processes of libFuzzer until the inputs are used up; one that finds something ends early."""
    corpus, found = work / "corpus", work / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    total: dict[str, Any] = {"inputs": 0, "seconds": 0.0, "edges": 0, "peak_memory_mib": 0, "findings": []}
    until_s = time.monotonic() + seconds
    while total["inputs"] < runs and len(total["findings"]) < MOST_FINDINGS and time.monotonic() < until_s - 1:
        one = _process(name, runs - total["inputs"], round(until_s - time.monotonic()), corpus, found)
        total["inputs"] += one["inputs"]
        total["seconds"] += one["seconds"]
        total["edges"] = max(total["edges"], one["edges"])
        total["peak_memory_mib"] = max(total["peak_memory_mib"], one["peak_memory_mib"])
        if one["finding"]:
            total["findings"].append(one["finding"])
        if not one["inputs"]:
            break
    return total | {"corpus": len(list(corpus.iterdir()))}


def _process(name: str, runs: int, seconds: int, corpus: Path, found: Path) -> dict[str, Any]:
    options = {
        "runs": runs,
        "max_total_time": seconds,
        "timeout": MOST_S_PER_INPUT,
        "rss_limit_mb": MOST_MEMORY_MIB,
        "print_final_stats": 1,
        "artifact_prefix": f"{found}/",
        "seed": int.from_bytes(os.urandom(3), "big") + 1,
    }
    command = [sys.executable, "-m", "tests.lab.fuzz", name, "--work", str(corpus.parent), "--inside"]
    command += [f"-{key}={value}" for key, value in options.items()] + [str(corpus)]
    started_s = time.monotonic()
    ran = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
    said = ran.stderr + ran.stdout

    def number(pattern: str) -> int:
        return max((int(text) for text in re.findall(pattern, said)), default=0)

    counted = number(r"stat::number_of_executed_units:\s+(\d+)") or number(r"(?m)^#(\d+)\s")
    return {
        "inputs": counted,
        "seconds": time.monotonic() - started_s,
        "edges": number(r"cov: (\d+)"),
        "peak_memory_mib": number(r"stat::peak_rss_mb:\s+(\d+)") or number(r"rss: (\d+)Mb"),
        "finding": _finding(ran.returncode, said),
    }


def _finding(status: int, said: str) -> str | None:
    if status == 0:
        return None
    lines = [
        line for line in said.splitlines() if re.match(r"[\w.]*(Error|Finding|Exception|Interrupt)\b", line.strip())
    ]
    fatal = re.findall(r"ERROR: libFuzzer: (.+)|== ERROR: (.+)", said)
    what = lines[-1].strip() if lines else " ".join(fatal[0]).strip() if fatal else f"ended with status {status}"
    return what[:300]


def inside(name: str, arguments: list[str]) -> None:
    """In libFuzzer's process: instruments feedline, then never returns."""
    import atheris as found  # pyright: ignore[reportMissingModuleSource]

    atheris: Any = found

    with atheris.instrument_imports(include=["feedline"], enable_loader_override=False):
        from tests.lab.fuzz_targets import TARGETS
    target = TARGETS[name]
    corpus = Path(arguments[-1])
    for seed in target.seeds():
        (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)

    def mutate(data: bytes, most_bytes: int, seed: int) -> bytes:
        out = bytes(atheris.Mutate(data, most_bytes))
        rng = random.Random(seed)
        if target.repair is not None and rng.random() < 0.9:
            out = target.repair(out, rng)
        return out[:most_bytes]

    atheris.Setup(
        [name, f"-max_len={target.max_bytes}", *arguments],
        target.check,
        custom_mutator=mutate,
        internal_libfuzzer=True,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
