"""The benchmark: measuring processes, and rows of ratios."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import backends as registry
from benchmarks.items import (
    LENGTH,
    LENGTH_FRAMEWORKS,
    LENGTH_SIZES,
    LENGTHS,
    PARTS,
    THIRD_PARTY,
    TOOLKITS,
    Goal,
    Item,
)
from benchmarks.measure import median, quartiles, ratios
from benchmarks.problem import Problem
from parity_tests.format.expected import programs_folder
from parity_tests.workers.environment import THREADS, environment
from parity_tests.workers.keeper import LIFELINE
from parity_tests.workers.process import Progress, untold
from parity_tests.workers.recordings import own_version

ROUNDS = 7
QUICK_ROUNDS = 3
FRESH = 3
"""The largest number of pairs of fresh processes that measure memory or compiling: a pair is a round."""
LENGTH_ROUNDS = 3
SHARE = 0.6
"""The share of the memory that is free when a process starts which it may take: with more it does not fit."""
LOOKS_SECONDS = 0.05
LONGEST_SECONDS = 3600.0
KEPT_CHARACTERS = 400


class Failed(Exception):
    """A benchmark process ended without a result."""


@dataclass
class Row:
    """A ratio, theirs / ours: the median and quartiles of the rounds.

    part is what was compiled or what took the memory, work what a forward pass has to do, and tokens those of the
    translations, if it is of a translator. refused is the reason why there is no ratio, if there is none.
    """

    item: str
    framework: str
    direction: str
    part: str
    against: str
    sizes: dict[str, int]
    goal: float | None
    aim: float | None
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    rounds: int = 0
    ours: float | None = None
    theirs: float | None = None
    unit: str = "seconds"
    how: str = ""
    eps: dict[str, float] = field(default_factory=dict)
    refused: str = ""
    work: int = 0
    tokens: int = 0

    @property
    def tokens_per_second(self) -> tuple[float, float] | None:
        """Ours and theirs; None if no step or search of a translator was timed."""
        if not (self.tokens and self.direction in PARTS and self.ours and self.theirs):
            return None
        return self.tokens / self.ours, self.tokens / self.theirs

    @property
    def rate(self) -> float | None:
        """The throughput of our forward pass in 10⁹/s; None if no forward pass was timed."""
        return self.work / self.ours / 1e9 if self.direction == "forward" and self.ours else None

    @property
    def is_reached(self) -> bool | None:
        """Whether the ratio is at least the goal; None where there is no goal or no ratio."""
        return None if self.goal is None or self.ratio is None else self.ratio >= self.goal

    def as_json(self) -> dict[str, Any]:
        """The row as an object, with what follows from its figures."""
        derived = {"tokens_per_second": self.tokens_per_second, "rate": self.rate, "reached": self.is_reached}
        return {**asdict(self), **derived}

    def fill(self, rounds: Sequence[tuple[float, float]]) -> Row:
        """Fill the row from the rounds: (ours, theirs) in seconds or bytes."""
        by_round = ratios(rounds)
        self.ratio, self.spread, self.rounds = median(by_round), quartiles(by_round), len(rounds)
        self.ours, self.theirs = map(median, zip(*rounds, strict=True))
        return self


@dataclass
class Length:
    """What a training step of additive attention takes at one length of queries and keys.

    growth is its time by that of half the length.
    """

    framework: str
    form: str
    length: int
    seconds: float | None = None
    bytes: int | None = None
    growth: float | None = None
    how: str = ""
    refused: str = ""


@dataclass
class Bench:
    """The results of a benchmark, with the machine and the duration.

    With more than one thread, theirs is this library with one.
    """

    rows: list[Row] = field(default_factory=list)
    lengths: list[Length] = field(default_factory=list)
    rounds: int = ROUNDS
    threads: int = 1
    quick: bool = False
    seconds: float = 0.0
    machine: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def refused_rows(self) -> list[Row]:
        """The rows without a ratio."""
        return [row for row in self.rows if row.refused]

    def as_json(self) -> dict[str, Any]:
        """The bench as an object."""
        return {
            "attention_parity": own_version(),
            "machine": self.machine,
            "rounds": self.rounds,
            "quick": self.quick,
            "spread": "first and third quartile of the rounds",
            "seconds": round(self.seconds, 1),
            "missing": self.missing,
            "interrupted": self.interrupted,
            "rows": [row.as_json() for row in self.rows],
            "lengths": [asdict(length) for length in self.lengths],
        }


Run = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Runs a job in a fresh process, and returns its result."""


def process(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run a job in a fresh process.

    Raises: Failed if it ends without a result, or exceeds its share of the free memory.
    """
    chosen = environment_of(job)
    root = str(Path(__file__).parents[1])
    given = os.environ.get("PYTHONPATH")
    variables = {
        **os.environ,
        **chosen,
        "PYTHONPATH": os.pathsep.join(filter(None, [job.get("packages"), root, given])),
    }
    lifeline, kept = os.pipe()
    variables |= {"PYTHONSAFEPATH": "1", "PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "3", LIFELINE: str(lifeline)}
    limit, start = SHARE * free_bytes(), time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            env=variables,
            start_new_session=True,
            pass_fds=(lifeline,),
        )
        os.close(lifeline)
        try:
            assert worker.stdin is not None
            with suppress(BrokenPipeError):
                worker.stdin.write(json.dumps(job).encode())
                worker.stdin.close()
            while worker.poll() is None:
                if resident_of(worker.pid) > limit:
                    raise Failed(f"does not fit in {limit / 2**30:.1f} GiB")
                if time.monotonic() - start > LONGEST_SECONDS:
                    raise Failed(f"took more than {LONGEST_SECONDS:.0f} s")
                time.sleep(LOOKS_SECONDS)
        finally:
            os.close(kept)  # the keeper ends all
            worker.wait()
        output.seek(0)
        errors.seek(0)
        if worker.returncode:
            printed = errors.read().decode(errors="replace").strip().splitlines() or [""]
            # The exception, behind which a framework may print more.
            raised = [line for line in printed if re.match(r"[\w.]+(Error|Exception)\b", line)]
            raise Failed(f"the process ended with {worker.returncode}: {[*printed, *raised][-1][-KEPT_CHARACTERS:]}")
        return dict(json.loads(output.read().decode().splitlines()[-1]))


def environment_of(job: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables of a job's framework: those of a parity run, with as many threads as the job has."""
    chosen = environment(job["framework"], programs_folder(), job["device"])
    chosen.pop("JAX_COMPILATION_CACHE_DIR", None)  # what is read from a cache is not compiled
    chosen["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    return chosen | dict.fromkeys(THREADS, str(job.get("threads", 1)))


def free_bytes() -> int:
    """The memory that is available without swapping."""
    (line,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
    return int(line.split()[1]) * 1024


def resident_of(pid: int) -> int:
    """The bytes in memory of the process that a keeper keeps, 0 once it is gone."""
    with suppress(OSError, IndexError, ValueError):
        kept = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        return int(Path(f"/proc/{kept}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def bench(
    items: Sequence[Item],
    frameworks: Sequence[str],
    *,
    rounds: int | None = None,
    quick: bool = False,
    lengths: bool = False,
    device: str = "cpu",
    packages: str | None = None,
    threads: int = 1,
    run: Run = process,
    progress: Progress = untold,
) -> Bench:
    """Measure the items in all installed frameworks; lengths adds the item over the length.

    packages is a folder with another version of `attention_core` and `backends` as the other implementation; with more
    than one thread, the other is this library with one. Ctrl-C ends it; the results so far are returned.
    """
    start = time.perf_counter()
    result = Bench(rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS), quick=quick, threads=threads)
    other: dict[str, Any] = {}
    if packages is not None:
        other = {"form": None, "packages": packages}
    elif threads > 1:
        other = {"form": None, "threads": 1}
    known = registry.available()
    result.missing = {name: str(known[name].reason) for name in frameworks if known[name].reason is not None}
    here = [name for name in frameworks if name not in result.missing]
    items, toolkits = with_installed(items, here)
    result.missing |= {name: why for name, why in toolkits.items() if why}
    versions = {name: known[name].versions for name in here}
    versions |= {name: {name: importlib.metadata.version(name)} for name, why in toolkits.items() if not why}
    result.machine = machine(versions, device, threads)
    try:
        if here:
            progress("machine", 0, 1, "its speed in NumPy")
            with suppress(Failed):
                job = {"task": "machine", "framework": here[0], "device": device, "form": None}
                result.machine["rates"] = run(job).get("rates", {})
            progress("machine", 1, 1)
        for item in items:
            there = [name for name in here if name in item.frameworks]
            if not there:
                continue
            count = sum(len(item.goals_in(framework, quick)) for framework in there)
            report = _reporting(progress, item.name, count, result.rows)
            for framework in there:
                for row in rows_of(item, framework, result, device, run, report, other):
                    result.rows.append(row)
            report("")
        if lengths:
            there = [name for name in here if name in LENGTH_FRAMEWORKS]
            count = len(there) * 2 * len(LENGTHS[:2] if quick else LENGTHS)
            report = _reporting(progress, LENGTH, count, result.lengths)
            for framework in there:
                for length in lengths_of(framework, quick, device, run, report):
                    result.lengths.append(length)
            progress(LENGTH, count, count)  # one that does not fit leaves the longer ones out
    except KeyboardInterrupt:
        result.interrupted = True
    result.seconds = time.perf_counter() - start
    return result


def with_installed(items: Sequence[Item], frameworks: Sequence[str]) -> tuple[list[Item], dict[str, str]]:
    """The items without what is against toolkits that are not installed, and why each toolkit is missing, or ""."""
    used = {goal.against for item in items for goal in item.goals if goal.framework in frameworks}
    reasons = {
        name: ""
        if importlib.util.find_spec(package)
        else f"{package} is not installed. How to install it: docs/performance.md"
        for name, package in TOOLKITS.items()
        if name in used
    }
    kept = [replace(item, goals=tuple(goal for goal in item.goals if not reasons.get(goal.against))) for item in items]
    return kept, reasons


def _reporting(progress: Progress, part: str, count: int, results: Sequence[object]) -> Callable[[str], None]:
    """Report the progress of a part whose results are added to those that are there now."""
    before = len(results)
    return lambda doing: progress(part, len(results) - before, count, doing)


def rows_of(
    item: Item,
    framework: str,
    bench: Bench,
    device: str,
    run: Run,
    report: Callable[[str], None],
    other: Mapping[str, Any],
) -> Iterator[Row]:
    """The rows of an item in a framework; a form is timed only if it agrees with the library's.

    other is what a job of this library's other version, or of its other number of threads, differs in: the two cannot
    share a process, and are timed in fresh ones.
    """
    sizes, goals = item.sizes_in(framework, bench.quick), item.goals_in(framework, bench.quick)
    for against in dict.fromkeys(goal.against for goal in goals):
        compared = [goal for goal in goals if goal.against == against]
        what = {"framework": framework, "item": item.name, "sizes": sizes, "against": against}
        job = {**what, "device": device, "threads": bench.threads}
        parts = list(dict.fromkeys(goal.part for goal in compared))
        report(f"{framework}, {against}: agreement and times")
        timing = {**job, "parts": parts, "rounds": bench.rounds}
        try:
            timed = in_turn(timing, other, run) if other else run({**timing, "task": "times"})
        except Failed as error:
            timed = {"refused": str(error)}
        for goal in compared:
            row = Row(item.name, framework, goal.direction, goal.part, against, sizes, goal.least, goal.aim)
            problem = Problem(item, sizes)
            row.eps, row.work, row.tokens = timed.get("errors", {}), problem.work, problem.tokens
            if "refused" in timed:
                row.refused = timed["refused"]
            elif goal.direction in timed["rounds"]:
                row.fill([(ours, theirs) for ours, theirs in timed["rounds"][goal.direction]])
            else:
                report(f"{framework}, {against}: {goal.direction} of {goal.part}")
                measure_afresh(row, goal, job, other or {"form": against}, min(bench.rounds, FRESH), run)
            yield row


def in_turn(job: Mapping[str, Any], other: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The rounds of each part of this library and of its other form, by pairs of fresh processes.

    Raises: Failed.
    """
    pairs = [
        [run({**job, "task": "alone", **form})["seconds"] for form in ({"form": None}, other)]
        for _ in range(min(job["rounds"], FRESH))
    ]
    return {"rounds": {part: [(ours[part], theirs[part]) for ours, theirs in pairs] for part in job["parts"]}}


def measure_afresh(
    row: Row, goal: Goal, job: Mapping[str, Any], other: Mapping[str, Any], pairs: int, run: Run
) -> None:
    """Fill a row by pairs of fresh processes, ours and the other form in turn."""
    row.unit = {"memory": "bytes", "compile": "seconds"}[goal.direction]
    rounds = []
    try:
        for _ in range(pairs):
            task = {**job, "task": goal.direction, "part": goal.part}
            ours, theirs = (run({**task, **form}) for form in ({"form": None}, other))
            row.how = ours.get("how", "")
            rounds.append((float(ours[row.unit]), float(theirs[row.unit])))
    except Failed as error:
        row.refused = str(error)
        return
    row.fill(rounds)


def lengths_of(framework: str, quick: bool, device: str, run: Run, report: Callable[[str], None]) -> Iterator[Length]:
    """A training step of both forms over the length, each up to the first length that does not fit."""
    for form in (None, THIRD_PARTY):
        before: float | None = None
        for length in LENGTHS[:2] if quick else LENGTHS:
            sizes = {**LENGTH_SIZES, "queries": length, "keys": length}
            job = {"task": "length", "framework": framework, "item": LENGTH, "sizes": sizes, "device": device}
            name = "ours" if form is None else form
            report(f"{framework}, {name}: {length}")
            try:
                step = run({**job, "form": form, "rounds": LENGTH_ROUNDS})
            except Failed as error:
                yield Length(framework, name, length, refused=str(error))
                break
            growth = None if before is None else step["seconds"] / before
            before = step["seconds"]
            yield Length(framework, name, length, step["seconds"], step["bytes"], growth, step["how"])


def machine(versions: Mapping[str, Mapping[str, str]], device: str, threads: int) -> dict[str, Any]:
    """What the ratios were measured on."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "device": device,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "versions": {name: dict(numbers) for name, numbers in versions.items()},
    }
