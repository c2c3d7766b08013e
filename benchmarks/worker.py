"""A process of the bench: runs one job on one core, and prints what it measured as JSON."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from typing import Any

import backends as registry
from benchmarks.items import ADDITIVE_CONTEXT, ITEMS, LENGTH, Item
from benchmarks.measure import Disagreement, interleave, median, peak_growth, pin, rates, validate, wall
from benchmarks.problem import Problem
from parity_tests.workers.keeper import keep

ANALYSIS, PEAK, ALLOCATED = "XLA's analysis", "peak of a fresh process", "peak of the device's allocator"
"""How memory is measured."""
STEADY = 3
"""The number of calls, after the first one, that time a compiled call."""


def main() -> None:
    """Read the job from standard input; write what was measured as the last line of standard output."""
    keep()
    job = json.load(sys.stdin)
    pin(job.get("threads", 1))
    if job["task"] == "machine":
        print("\n" + json.dumps({"rates": rates()}))
        return
    registry.load(job["framework"])  # first: MXNet cannot be imported before what our backend prepares
    framework = importlib.import_module(f"benchmarks.{job['framework']}")
    framework.configure(job.get("threads", 1))
    print("\n" + json.dumps(TASKS[job["task"]](framework, job)))


def item_of(job: dict[str, Any]) -> Item:
    """The item of a job."""
    return replace(ADDITIVE_CONTEXT, name=LENGTH) if job["item"] == LENGTH else ITEMS[job["item"]]


def make(framework: Any, job: dict[str, Any], against: str | None, sizes: dict[str, int] | None = None) -> Any:
    """One form of the job's item, at its sizes unless others are given."""
    return framework.form(Problem(item_of(job), sizes or job["sizes"]), against, job["device"])


def times(framework: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Validate that both forms agree, then time them: the errors, and the rounds of each part."""
    ours, theirs = make(framework, job, None), make(framework, job, job["against"])
    try:
        errors = validate(ours, theirs, "training" in job["parts"])
    except Disagreement as error:
        return {"refused": str(error)}
    rounds = {
        part: interleave(getattr(ours, part), getattr(theirs, part), job["rounds"], ours.seconds)
        for part in job["parts"]
    }
    return {"errors": errors, "rounds": rounds}


def alone(framework: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The seconds that each part of one form takes."""
    form = make(framework, job, job["form"])
    calls = {part: getattr(form, part) for part in job["parts"]}
    rounds = {part: interleave(call, call, job["rounds"], form.seconds) for part, call in calls.items()}
    return {"seconds": {part: median([one for one, _ in measured]) for part, measured in rounds.items()}}


def memory(framework: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The bytes that one form takes."""
    return bytes_of(framework, job, make(framework, job, job["form"]), job["part"])


def bytes_of(framework: Any, job: dict[str, Any], form: Any, part: str) -> dict[str, Any]:
    """The bytes that a part of a form takes: XLA's own analysis, what is allocated on a GPU, or this process' growth.

    What a framework reads in and allocates once and for all is there by then: the form ran at small sizes before.
    """
    if hasattr(form, "planned_bytes"):
        return {"bytes": form.planned_bytes(part), "how": ANALYSIS}
    small = {name: size for name, size in item_of(job).quick.items() if name in job["sizes"]}
    getattr(make(framework, job, job["form"], {**job["sizes"], **small}), part)()
    if job["device"] != "cpu":
        return {"bytes": framework.peak_allocation(getattr(form, part), job["device"]), "how": ALLOCATED}
    return {"bytes": peak_growth(getattr(form, part)), "how": PEAK}


def compiling(framework: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The seconds that one form takes to compile: tracing, lowering and compiling, or the first call less a later."""
    form = make(framework, job, job["form"])
    if hasattr(form, "compile_part"):
        return {"seconds": wall(lambda: form.compile_part(job["part"]))}
    call = getattr(form, job["part"])
    first = wall(call)
    return {"seconds": max(first - median([wall(call) for _ in range(STEADY)]), 1e-9)}


def length(framework: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The seconds of a training step of one form, and the bytes that it takes."""
    form = make(framework, job, job["form"])
    memory = bytes_of(framework, job, form, "training")
    form.training()  # which compiles, where memory was analysed
    return {"seconds": median([wall(form.training) for _ in range(job["rounds"])]), **memory}


TASKS = {"times": times, "alone": alone, "memory": memory, "compile": compiling, "length": length}

if __name__ == "__main__":
    main()
