"""The bench itself: processes that measure, rows of ratios, and what they are written to."""

from __future__ import annotations

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import backends as registry
import parity_tests
from parity_tests.bench.items import (
    LENGTH,
    LENGTH_FRAMEWORKS,
    LENGTH_SIZES,
    LENGTHS,
    TEXTBOOK,
    Goal,
    Item,
    shown,
    work,
)
from parity_tests.bench.measure import median, quartiles, ratios
from parity_tests.cases.expected import programs_folder
from parity_tests.workers.environment import environment
from parity_tests.workers.process import Progress, untold
from parity_tests.workers.recordings import own_version
from parity_tests.workers.worker import LIFELINE

ROUNDS = 7
QUICK_ROUNDS = 3
FRESH = 3
"""How many pairs of fresh processes say what is compiled and what memory is taken, at most: a pair is a round."""
LENGTH_ROUNDS = 3
SHARE = 0.6
"""Of the memory that is free when a process starts, how much it may take before it is said not to fit."""
LOOKS_SECONDS = 0.05
LONGEST_SECONDS = 3600.0
KEPT_CHARACTERS = 400


class Failed(Exception):
    """A process of the bench did not say what it was asked for."""


@dataclass
class Row:
    """One ratio, theirs / ours: the median of the rounds, and the quartiles between which half of them lie.

    part says what was compiled or what memory was taken by, and work what a forward pass has to do. refused says why
    there is no ratio, if there is none.
    """

    item: str
    framework: str
    direction: str
    part: str
    against: str
    sizes: dict[str, int]
    goal: float | None
    wanted: float | None
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

    @property
    def rate(self) -> float | None:
        """The work of a forward pass of ours in a second, in 10⁹; None where no forward pass was timed."""
        return self.work / self.ours / 1e9 if self.direction == "forward" and self.ours else None

    @property
    def reached(self) -> bool | None:
        """Whether the ratio is at least the goal; None where there is no goal or no ratio."""
        return None if self.goal is None or self.ratio is None else self.ratio >= self.goal

    def measured(self, rounds: Sequence[tuple[float, float]]) -> Row:
        """The row, with what the rounds say: seconds or bytes of ours and of theirs in each."""
        found = ratios(rounds)
        self.ratio, self.spread, self.rounds = median(found), quartiles(found), len(found)
        self.ours, self.theirs = (median([own[side] for own in rounds]) for side in (0, 1))
        return self


@dataclass
class Length:
    """What a training step of additive attention takes at one length of queries and keys."""

    framework: str
    form: str
    length: int
    seconds: float | None = None
    bytes: int | None = None
    how: str = ""
    refused: str = ""


@dataclass
class Bench:
    """All that was measured, where, and how long it took."""

    rows: list[Row] = field(default_factory=list)
    lengths: list[Length] = field(default_factory=list)
    rounds: int = ROUNDS
    quick: bool = False
    seconds: float = 0.0
    machine: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def refused(self) -> list[Row]:
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
            "rows": [{**asdict(row), "rate": row.rate, "reached": row.reached} for row in self.rows],
            "lengths": [asdict(length) for length in self.lengths],
        }


Run = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Has a fresh process do what a job says, and gives what it found."""


def process(job: Mapping[str, Any]) -> dict[str, Any]:
    """Have a fresh process do what a job says.

    Raises: Failed if it ends without an answer, or takes more memory than its share of what was free.
    """
    chosen = environment(job["framework"], programs_folder(), job["device"])
    chosen.pop("JAX_COMPILATION_CACHE_DIR", None)  # what is read from a cache is not compiled
    root = str(Path(parity_tests.__file__).parents[1])
    given = os.environ.get("PYTHONPATH")
    variables = {**os.environ, **chosen, "PYTHONPATH": os.pathsep.join([root, *([given] if given else [])])}
    lifeline, held = os.pipe()
    variables |= {"PYTHONSAFEPATH": "1", "PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "3", LIFELINE: str(lifeline)}
    limit, start = SHARE * free_bytes(), time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "parity_tests.bench.worker"],
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
            worker.kill()
            worker.wait()
            os.close(held)
        output.seek(0)
        errors.seek(0)
        if worker.returncode:
            told = errors.read().decode(errors="replace").strip().splitlines() or [""]
            # What was raised, behind which a framework may say more.
            raised = [line for line in told if re.match(r"[\w.]+(Error|Exception)\b", line)]
            raise Failed(f"the process ended with {worker.returncode}: {[*told, *raised][-1][-KEPT_CHARACTERS:]}")
        return dict(json.loads(output.read().decode().splitlines()[-1]))


def free_bytes() -> int:
    """The memory that may be taken without driving anything out."""
    found = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
    return int(found[0].split()[1]) * 1024


def resident_of(pid: int) -> int:
    """The bytes of a process in memory, 0 once it is gone."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def bench(
    items: Sequence[Item],
    frameworks: Sequence[str],
    *,
    rounds: int | None = None,
    quick: bool = False,
    lengths: bool = False,
    device: str = "cpu",
    run: Run = process,
    progress: Progress = untold,
) -> Bench:
    """Measure the items in the frameworks that are installed; lengths adds the item that is drawn over the length.

    Ctrl-C ends it; what was measured by then is given.
    """
    start = time.perf_counter()
    found = Bench(rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS), quick=quick)
    known = registry.available()
    found.missing = {name: str(known[name].reason) for name in frameworks if known[name].reason is not None}
    here = [name for name in frameworks if name not in found.missing]
    found.machine = machine({name: known[name].versions for name in here}, device)
    try:
        if here:
            progress("machine", 0, 1, "what it does in NumPy")
            with suppress(Failed):
                alone = {"task": "machine", "framework": here[0], "device": device, "form": None}
                found.machine["rates"] = run(alone).get("rates", {})
            progress("machine", 1, 1)
        for item in items:
            own = list(filter(here.__contains__, item.frameworks))
            if not own:
                continue
            of = sum(len(item.goals_in(framework, quick)) for framework in own)
            told = telling(progress, item.name, of, found.rows)
            for framework in own:
                for row in rows_of(item, framework, found.rounds, quick, device, run, told):
                    found.rows.append(row)
            told("")
        if lengths:
            own = list(filter(here.__contains__, LENGTH_FRAMEWORKS))
            of = len(own) * 2 * len(LENGTHS[:2] if quick else LENGTHS)
            told = telling(progress, LENGTH, of, found.lengths)
            for framework in own:
                for length in lengths_of(framework, quick, device, run, told):
                    found.lengths.append(length)
            progress(LENGTH, of, of)  # one that does not fit takes the longer ones with it
    except KeyboardInterrupt:
        found.interrupted = True
    found.seconds = time.perf_counter() - start
    return found


def telling(progress: Progress, part: str, of: int, found: Sequence[object]) -> Callable[[str], None]:
    """Tell of a part whose findings are added to those that are there now."""
    before = len(found)
    return lambda doing: progress(part, len(found) - before, of, doing)


def rows_of(
    item: Item, framework: str, rounds: int, quick: bool, device: str, run: Run, told: Callable[[str], None]
) -> Iterator[Row]:
    """The rows of an item in a framework: nothing is timed against a form that does not agree with ours."""
    sizes, goals = item.sizes_in(framework, quick), item.goals_in(framework, quick)
    for against in dict.fromkeys(goal.against for goal in goals):
        own = [goal for goal in goals if goal.against == against]
        job = {"framework": framework, "item": item.name, "sizes": sizes, "device": device, "against": against}
        parts = list(dict.fromkeys(goal.part for goal in own))
        told(f"{framework}, {against}: agreement and times")
        try:
            timed = run({**job, "task": "times", "parts": parts, "rounds": rounds})
        except Failed as error:
            timed = {"refused": str(error)}
        for goal in own:
            row = Row(item.name, framework, goal.direction, goal.part, against, sizes, goal.least, goal.wanted)
            row.eps, row.work = timed.get("errors", {}), work(item, sizes)
            if "refused" in timed:
                row.refused = timed["refused"]
            elif goal.direction in timed["rounds"]:
                row.measured([(one, other) for one, other in timed["rounds"][goal.direction]])
            else:
                told(f"{framework}, {against}: {goal.direction} of {goal.part}")
                fresh(row, goal, job, min(rounds, FRESH), run)
            yield row


def fresh(row: Row, goal: Goal, job: Mapping[str, Any], pairs: int, run: Run) -> None:
    """Fill a row with what pairs of fresh processes say, ours and theirs in turn."""
    quantity = {"memory": "bytes", "compile": "seconds"}[goal.direction]
    row.unit, measured = quantity, []
    try:
        for _ in range(pairs):
            both = [run({**job, "task": goal.direction, "part": goal.part, "form": own}) for own in (None, row.against)]
            row.how = both[0].get("how", "")
            measured.append((float(both[0][quantity]), float(both[1][quantity])))
    except Failed as error:
        row.refused = str(error)
        return
    row.measured(measured)


def lengths_of(framework: str, quick: bool, device: str, run: Run, told: Callable[[str], None]) -> Iterator[Length]:
    """A training step of both forms over the length, each up to the first length that does not fit."""
    for form in (None, TEXTBOOK):
        for length in LENGTHS[:2] if quick else LENGTHS:
            sizes = {**LENGTH_SIZES, "queries": length, "keys": length}
            job = {"task": "length", "framework": framework, "item": LENGTH, "sizes": sizes, "device": device}
            name = "ours" if form is None else form
            told(f"{framework}, {name}: {length}")
            try:
                own = run({**job, "form": form, "rounds": LENGTH_ROUNDS})
            except Failed as error:
                yield Length(framework, name, length, refused=str(error))
                break
            yield Length(framework, name, length, own["seconds"], own["bytes"], own["how"])


def machine(versions: Mapping[str, Mapping[str, str]], device: str) -> dict[str, Any]:
    """What the ratios were measured on."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": os.cpu_count(),
        "threads": 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "device": device,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "versions": {name: dict(own) for name, own in versions.items()},
    }


# ------------------------------------------------------------------------------------------------------- the page

OPENING, CLOSING = "<!-- bench -->", "<!-- end of bench -->"


def page(found: Bench) -> str:
    """The table of the rows, in Markdown, and what they were measured on."""
    lines = [
        "| item | framework | direction | against | ratio | quartiles | 10⁹/s | goal | reached |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found.rows:
        cells = (row.item, row.framework, said(row), row.against, *numbers(row))
        lines.append(f"| {' | '.join(cells)} |")
    sizes: dict[str, dict[str, list[str]]] = {row.item: {} for row in found.rows}
    for row in found.rows:
        sizes[row.item].setdefault(shown(row.sizes), []).append(row.framework)
    lines += ["", "Sizes:", ""]
    for item, own in sizes.items():
        each = [text if len(own) == 1 else f"{text} ({', '.join(dict.fromkeys(names))})" for text, names in own.items()]
        lines.append(f"- {item}: {'; '.join(each)}")
    if found.lengths:
        lines += [
            "",
            "A training step of additive attention over the length of queries and keys:",
            "",
            "| framework | form | length | seconds | MiB |",
            "|---|---|---|---|---|",
        ]
        lines += [f"| {at.framework} | {at.form} | {at.length} | {' | '.join(taken(at))} |" for at in found.lengths]
    return "\n".join([*lines, "", f"Measured on {place(found)}.", ""])


def said(row: Row) -> str:
    """The direction of a row in words."""
    return row.direction if row.direction == row.part else f"{row.direction} ({row.part})"


def numbers(row: Row) -> tuple[str, str, str, str, str]:
    """The ratio, its quartiles, the rate of ours, the goal, and whether it was reached, as they are printed."""
    goal = "" if row.goal is None else f"{row.goal:g}"
    if row.wanted is not None and row.wanted != row.goal:
        goal += f" → {row.wanted:g}"
    if row.ratio is None or row.spread is None:
        return row.refused or "none", "", "", goal, ""
    reached = {None: "", True: "yes", False: "no"}[row.reached]
    rate = "" if row.rate is None else f"{row.rate:.2g}"
    return f"{row.ratio:.2f}", f"{row.spread[0]:.2f} to {row.spread[1]:.2f}", rate, goal, reached


def taken(own: Length) -> tuple[str, str]:
    """The seconds and MiB of a length as they are printed, or why there are none."""
    if own.seconds is None or own.bytes is None:
        return own.refused, ""
    return f"{own.seconds:.3g}", f"{own.bytes / 2**20:,.1f}"


def place(found: Bench) -> str:
    """The machine and what it does in NumPy, the versions and the rounds, in one line."""
    own = found.machine
    versions = ", ".join(f"{name} {number}" for each in own["versions"].values() for name, number in each.items())
    where = "one thread" if own["device"] == "cpu" else own["device"]
    rates = ", ".join(f"{rate:.2g} {what}" for what, rate in own.get("rates", {}).items())
    does = f" (NumPy, 10⁹/s: {rates})" if rates else ""
    length = f"{found.rounds} rounds, {found.seconds:.0f} s"
    return f"{own['cpu']}, {own['cores']} cores, {where}{does}; {versions}; {length}"


def write_json(found: Bench, path: Path) -> None:
    """Write the bench as an object."""
    path.write_text(json.dumps(found.as_json(), indent=1) + "\n")


def write_page(found: Bench, path: Path) -> None:
    """Put the table into a page between its marks, or behind all that it holds if it has none."""
    text = path.read_text() if path.exists() else ""
    before, opening, rest = text.partition(OPENING)
    after = rest.partition(CLOSING)[2] if opening else ""
    before = before if opening or not before else before.rstrip("\n") + "\n\n"
    path.write_text(f"{before}{OPENING}\n{page(found)}{CLOSING}{after or chr(10)}")
