"""Count the Python calls of a command of attention-parity in its own process, without those of its workers.

    python -m tools.count_calls run --case additive_score-plain --backend torch

A call of a built-in function does not count, nor does what a module calls while it is imported.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from parity_tests import cases
from parity_tests.cli.main import main
from parity_tests.format import families

BUILDING = (str(Path(str(cases.__file__)).parent), str(families.__file__))
"""The folder and the file of the functions that build cases."""
LOADERS = ("<frozen importlib._bootstrap>", "_find_and_load")
"""File and name of the function that imports a module."""


@dataclass
class Calls:
    """The calls of a thread: all, and those that build cases."""

    total: int = 0
    building: int = 0
    _depth: int = 0
    _import_depth: int | None = None
    _building_depth: int | None = None

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count an event; the function to pass to `sys.setprofile`."""
        if event == "call":
            self._depth += 1
            self._enter(frame.f_code)
        elif event == "return":
            if self._depth == self._import_depth:
                self._import_depth = None
            if self._depth == self._building_depth:
                self._building_depth = None
            self._depth -= 1

    def _enter(self, code: CodeType) -> None:
        if self._import_depth is not None:
            return
        if (code.co_filename, code.co_name) == LOADERS:
            self._import_depth = self._depth
            return
        if self._building_depth is None and code.co_filename.startswith(BUILDING):
            self._building_depth = self._depth
        self.total += 1
        self.building += self._building_depth is not None


@dataclass
class Counter:
    """The calls of every thread that starts while a function runs."""

    threads: list[Calls] = field(default_factory=list)

    def run(self, function: Callable[[], object]) -> None:
        """Call the function and count; it may exit."""
        threading.setprofile(self._begin)
        sys.setprofile(self._new().profile)
        try:
            function()
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _new(self) -> Calls:
        self.threads.append(Calls())
        return self.threads[-1]

    def _begin(self, frame: FrameType, event: str, argument: Any) -> None:
        calls = self._new()
        calls.profile(frame, event, argument)
        sys.setprofile(calls.profile)

    @property
    def total(self) -> int:
        """The number of calls."""
        return sum(calls.total for calls in self.threads)

    @property
    def building(self) -> int:
        """The number of calls that build cases, and of those that these make."""
        return sum(calls.building for calls in self.threads)


if __name__ == "__main__":
    counter = Counter()
    counter.run(lambda: main(standalone_mode=False))
    print(f"calls       {counter.total:,}, of which {counter.building:,} build cases")
