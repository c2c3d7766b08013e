"""Measure the source: its size, what a formula reaches by imports, and the names of functions.

    python -m tools.house

`FIGURES` has the limits, which parity_tests/tests/structure/test_house.py asserts. Lines are those of Python files,
docstrings and comments included.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from backends import FRAMEWORKS

ROOT = Path(__file__).parents[1]
FOLDERS = (".ci", "attention_core", "backends", "benchmarks", "docs", "examples", "parity_tests", "tools")
WHEEL = ("attention_core", "backends", "parity_tests")
"""The folders that the wheel has, without parity_tests/tests."""
REACHED = {
    "scoring": {"torch": 400, "tf": 750, "jax": 400, "mxnet": 400},
    "attention": dict.fromkeys(FRAMEWORKS, 1_900),
    "multi_head": dict.fromkeys(FRAMEWORKS, 2_700),
    "decoders": dict.fromkeys(FRAMEWORKS, 3_400),
}
"""The most lines of a backend that can be reached by imports from a file, itself included."""
PARTICIPLES = {
    *(
        "begun",
        "bound",
        "built",
        "chosen",
        "dealt",
        "done",
        "drawn",
        "found",
        "given",
        "held",
        "hidden",
        "kept",
        "known",
    ),
    *("laid", "led", "left", "lost", "made", "met", "paid", "said", "seen", "sent", "shown", "spent", "stood", "taken"),
    *("thrown", "told", "understood", "written"),
}
"""Irregular past participles; the regular ones end in -ed."""
NO_PARTICIPLES = {"embed", "exceed", "feed", "need", "proceed", "red", "seed", "shed", "speed"}
PUBLIC_PARTICIPLES = {"pruned"}
"""Public methods of the specification, which keep their names."""


class Figure(NamedTuple):
    """A number of the source, and the most that it may be."""

    name: str
    measure: Callable[[], int]
    limit: int


@functools.cache
def sources() -> tuple[Path, ...]:
    """The Python files of the repository."""
    return tuple(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def lines_of(path: Path) -> int:
    """The lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def lines() -> int:
    """The lines of all files."""
    return sum(map(lines_of, sources()))


def lines_in_wheel() -> int:
    """The lines that are installed."""
    parts = ((path, path.relative_to(ROOT).parts) for path in sources())
    return sum(lines_of(path) for path, place in parts if place[0] in WHEEL and place[:2] != ("parity_tests", "tests"))


def imports_of(path: Path, package: str) -> Iterator[Path]:
    """The files of a package that a file imports, wherever the import stands; those of subpackages by their files."""
    for node in ast.walk(parse(path)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            found = ROOT.joinpath(*name.split(".")).with_suffix(".py")
            if name.startswith(f"{package}.") and found.exists():
                yield found


def reachable(framework: str, file: str) -> set[Path]:
    """The files of a backend that can be reached by imports from one of them, itself included."""
    found: set[Path] = set()
    waiting = [ROOT / "backends" / framework / f"{file}.py"]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += imports_of(path, f"backends.{framework}")
    return found


def is_participle(name: str) -> bool:
    """Whether a function has a single past participle for a name, which says neither value, action nor flag."""
    word = name.strip("_")
    if "_" in word or word in NO_PARTICIPLES:
        return False
    return word in PARTICIPLES or (word.endswith("ed") and len(word) > 3)


def participles() -> Iterator[str]:
    """The functions outside of the tests that are so named, as "file:line name"."""
    for path in sources():
        place = path.relative_to(ROOT)
        if "tests" not in place.parts:
            functions = (node for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef))
            vague = (node for node in functions if is_participle(node.name) and node.name not in PUBLIC_PARTICIPLES)
            yield from (f"{place}:{node.lineno} {node.name}" for node in vague)


FIGURES = (
    Figure("Python, lines", lines, 127_860),
    Figure("Python in the wheel, lines", lines_in_wheel, 85_950),
    *(
        Figure(
            f"backends/{framework}/{file}.py and what it imports of its backend, lines",
            lambda framework=framework, file=file: sum(map(lines_of, reachable(framework, file))),  # type: ignore[misc]
            limit,
        )
        for file, limits in REACHED.items()
        for framework, limit in limits.items()
    ),
)


def main() -> None:
    """Print each figure with its limit, as a Markdown table."""
    print("| figure | now | limit |")
    print("|---|---|---|")
    for figure in FIGURES:
        print(f"| {figure.name} | {figure.measure():,} | {figure.limit:,} |")
    print(f"| functions named by a single past participle | {len(list(participles()))} | 0 |")


if __name__ == "__main__":
    main()
