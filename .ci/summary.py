"""Print what every parity run said last, the sum of every run of pytest, and their total in pytest's form."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

WORDS = ("failed", "passed", "skipped", "errors")


def count(path: Path) -> Counter[str]:
    """How many tests of a run ended in which way; those that did not pass are named."""
    counts: Counter[str] = Counter()
    for case in ElementTree.parse(path).iter("testcase"):
        ways = [way for way in ("failure", "error", "skipped") if case.find(way) is not None]
        for way in ways or ["passed"]:
            counts[{"failure": "failed", "error": "errors"}.get(way, way)] += 1
        if ways and ways != ["skipped"]:
            print(f"{path.stem}: {case.get('classname')}::{case.get('name')}")
    return counts


def closing(folder: Path) -> Iterator[str]:
    """The last words of the parity runs in the logs of tox."""
    for path in sorted(folder.glob("*/log/*-commands*.log")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("green  ", "red  ")):
                yield f"{path.parents[1].name:<12} {line}"


def describe(counts: Counter[str]) -> str:
    """The counts in words."""
    return ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word]) or "no tests ran"


def main(folder: str, status: str, seconds: str) -> None:
    """Read what the environments left in tox's folder; status is the exit code of tox."""
    for line in closing(Path(folder)):
        print(line)
    total: Counter[str] = Counter()
    for path in sorted(Path(folder).glob("*.xml")):
        counts = count(path)
        print(f"{path.stem:<12} {describe(counts)}")
        total.update(counts)
    if status != "0" and not total["failed"]:
        total["failed"] += 1  # an environment that failed outside pytest: the parity run, ruff, mypy, an installation
    print(f"===== {describe(total)} in {float(seconds):.2f}s =====")


main(*sys.argv[1:])
