"""A process of the bench: measures one thing that it is told, on one core, and says it as JSON."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from typing import Any

import backends as registry
from parity_tests.bench.items import ADDITIVE_CONTEXT, ITEMS, LENGTH, Item, inputs, parameters
from parity_tests.bench.measure import Call, Disagreement, interleave, median, pin, prove, rates, taken, wall
from parity_tests.workers.worker import follow_judge

ANALYSIS, PEAK = "XLA's analysis", "peak of a fresh process"
"""How memory is measured."""
STEADY = 3
"""How many calls after the first one say what a call takes once all is compiled."""


def main() -> None:
    """Read what to measure from standard input; write what was found as the last line of standard output."""
    follow_judge()
    job = json.load(sys.stdin)
    pin()
    if job["task"] == "machine":
        print("\n" + json.dumps({"rates": rates()}))
        return
    registry.load(job["framework"])  # first: MXNet cannot be imported before what our backend prepares
    framework = importlib.import_module(f"parity_tests.bench.{job['framework']}")
    framework.configure()
    print("\n" + json.dumps(TASKS[job["task"]](framework, job)))


def item_of(job: dict[str, Any]) -> Item:
    """The item that is told by its name."""
    return replace(ADDITIVE_CONTEXT, name=LENGTH) if job["item"] == LENGTH else ITEMS[job["item"]]


def make(framework: Any, job: dict[str, Any], against: str | None, sizes: dict[str, int] | None = None) -> Any:
    """One form of the item that is told."""
    item, sizes = item_of(job), sizes or job["sizes"]
    return framework.form(item, against, sizes, parameters(item, sizes), inputs(item, sizes), job["device"])


def times(framework: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Prove that both forms agree, then time them: the errors, and the rounds of each part."""
    ours, theirs = make(framework, job, None), make(framework, job, job["against"])
    try:
        errors = prove(ours, theirs, "training" in job["parts"])
    except Disagreement as error:
        return {"refused": str(error)}
    clock = framework.clock(job["device"])
    rounds = {
        part: interleave(getattr(ours, part), getattr(theirs, part), job["rounds"], clock) for part in job["parts"]
    }
    return {"errors": errors, "rounds": rounds}


def memory(framework: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The bytes that one form takes: XLA's own analysis, or what a fresh process grows by.

    What a framework reads in and allocates once and for all is there by then: the form ran at small sizes before.
    """
    form = make(framework, job, job["form"])
    if hasattr(form, "analysed"):
        return {"bytes": form.analysed(job["part"]), "how": ANALYSIS}
    return {"bytes": grown(framework, job, getattr(form, job["part"]), job["part"]), "how": PEAK}


def grown(framework: Any, job: dict[str, Any], call: Call, part: str) -> int:
    """The bytes by which a call lets this process grow, once the same form ran at small sizes."""
    small = {name: size for name, size in item_of(job).quick.items() if name in job["sizes"]}
    getattr(make(framework, job, job["form"], {**job["sizes"], **small}), part)()
    return taken(call)


def compiling(framework: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The seconds that one form takes to compile: tracing, lowering and compiling, or the first call less a later."""
    form = make(framework, job, job["form"])
    if hasattr(form, "compiled"):
        return {"seconds": wall(lambda: form.compiled(job["part"]))}
    call = getattr(form, job["part"])
    first = wall(call)
    return {"seconds": max(first - median([wall(call) for _ in range(STEADY)]), 1e-9)}


def length(framework: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The seconds of a training step of one form, and the bytes that it takes."""
    form = make(framework, job, job["form"])
    if hasattr(form, "analysed"):
        found = {"bytes": form.analysed("training"), "how": ANALYSIS}
        form.training()
    else:
        found = {"bytes": grown(framework, job, form.training, "training"), "how": PEAK}
    return {"seconds": median([wall(form.training) for _ in range(job["rounds"])]), **found}


TASKS = {"times": times, "memory": memory, "compile": compiling, "length": length}

if __name__ == "__main__":
    main()
