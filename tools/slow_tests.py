"""Write the list of slow tests from reports of a run: `python -m tools.slow_tests .tox/*.xml`.

Every test function runs in every run, at least once: its fastest instance over all frameworks is never in the list.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from parity_tests.tests.slow import LIST

SECONDS = 1.0
"""The time from which on an instance of a test is slow."""


def seconds_of(reports: Iterable[Path]) -> dict[str, float]:
    """The longest time that each test took in JUnit reports, by its name."""
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        for test in ElementTree.parse(report).iter("testcase"):
            name = f"{test.get('classname', '').replace('.', '/')}.py::{test.get('name')}"
            seconds[name] = max(seconds[name], float(test.get("time", 0.0)))
    return dict(seconds)


def slow_instances(seconds: Mapping[str, float]) -> list[str]:
    """The slow instances: all that take so long, but for the fastest of each function."""
    instances = defaultdict(list)
    for name in seconds:
        instances[name.partition("[")[0]].append(name)
    fastest = {min(names, key=lambda name: (seconds[name], name)) for names in instances.values()}
    return sorted(name for name, time in seconds.items() if time >= SECONDS and name not in fastest)


if __name__ == "__main__":
    names = slow_instances(seconds_of(map(Path, sys.argv[1:])))
    LIST.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
