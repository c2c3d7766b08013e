"""Print pytest's summary line of every tox environment again, and their total in pytest's form as the last line."""

import re
import sys
from collections import Counter
from pathlib import Path

SUMMARY = re.compile(r"^=+ (?P<counts>(?:\d+ \w+(?:, )?)+) in (?P<seconds>[\d.]+)s.* =+$")
COMMAND = re.compile(r"^(?P<environment>[\w.-]+): commands\[\d+\]> ")


def main(log: str, status: str) -> None:
    """Read the log of `tox run`; status is its exit code."""
    environment, total, seconds = "", Counter(), 0.0
    for line in re.sub(r"\x1b\[[\d;]*m", "", Path(log).read_text(encoding="utf-8", errors="replace")).splitlines():
        if match := COMMAND.match(line):
            environment = match["environment"]
        if match := SUMMARY.match(line):
            print(f"{environment:<12} {match['counts']}")
            total.update({word: int(count) for count, word in re.findall(r"(\d+) (\w+)", match["counts"])})
            seconds += float(match["seconds"])
    if status != "0" and not total["failed"]:
        total["failed"] += 1  # an environment that failed outside pytest: the parity run, ruff, mypy, an installation
    counts = ", ".join(
        f"{total[word]} {word}" for word in ("failed", "passed", "skipped", "error", "errors") if total[word]
    )
    print(f"===== {counts or 'no tests ran'} in {seconds:.2f}s =====")


main(*sys.argv[1:])
