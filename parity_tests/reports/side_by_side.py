"""An HTML page with one file of two backends side by side, aligned by definition and line."""

from __future__ import annotations

import ast
import html
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from backends import available


class Line(NamedTuple):
    """A line of a file, and its number there."""

    number: int
    text: str


Row = tuple[Line | None, Line | None]
"""A line of the left and one of the right, None where one side has none."""


class NoSource(Exception):
    """A backend or its file does not exist."""


@dataclass(frozen=True)
class Section:
    """A definition, or the text between two definitions, on both sides; "" is the text before the first."""

    name: str
    rows: Sequence[Row]


def source(backend: str, file: str) -> str:
    """The text of a backend's file; nothing of it is imported.

    Raises: NoSource.
    """
    known = available()
    if backend not in known:
        raise NoSource(f"no backend {backend!r}; there are {', '.join(known)}")
    spec = importlib.util.find_spec(known[backend].module)
    if spec is None or spec.origin is None:
        raise NoSource(f"{backend}: {known[backend].module} has no source here")
    path = Path(spec.origin).parent / f"{file}.py"
    if not path.exists():
        folder = Path(spec.origin).parent
        names = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py") if path.stem != "__init__")
        files = sorted(map(str, names))
        raise NoSource(f"{backend} has no file {file!r}; there are {', '.join(files)}")
    return path.read_text(encoding="utf-8")


def definitions(text: str) -> dict[str, list[Line]]:
    """The lines of each function and class at the top of a file, comments before it included; "" holds the rest."""
    lines = [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)]
    parts: dict[str, list[Line]] = {"": []}
    end = 0
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
        while start > end and lines[start - 1].text.startswith("#"):
            start -= 1
        parts[""] += lines[end:start]
        end = node.end_lineno or node.lineno
        parts[node.name] = lines[start:end]
    parts[""] += lines[end:]
    return parts


def sections(left: str, right: str) -> Iterator[Section]:
    """The definitions of both, in the order of the left, those that the right has alone in their place."""
    first, second = definitions(left), definitions(right)
    order = list(first)
    for position, name in enumerate(second):
        if name not in first:
            before = list(second)[position - 1]
            order.insert(order.index(before) + 1, name)
    for name in order:
        yield Section(name, list(align(_trim(first.get(name, [])), _trim(second.get(name, [])))))


def align(left: Sequence[Line], right: Sequence[Line]) -> Iterator[Row]:
    """Align equal lines, and lines that replace each other."""
    texts = [line.text for line in left], [line.text for line in right]
    for tag, a, b, c, d in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from zip(left[a:b], right[c:d], strict=True)
            continue
        for offset in range(max(b - a, d - c)):
            yield (
                left[a + offset] if a + offset < b else None,
                right[c + offset] if c + offset < d else None,
            )


def alike(row: Row) -> bool:
    """Whether both sides of a row are equal."""
    return row[0] is not None and row[1] is not None and row[0].text == row[1].text


def page(file: str, names: tuple[str, str], texts: tuple[str, str]) -> str:
    """The whole page, which is self-contained."""
    both = list(sections(*texts))
    same = sum(alike(row) for section in both for row in section.rows)
    total = sum(len(section.rows) for section in both)
    links = " ".join(
        f'<a href="#{html.escape(section.name)}">{html.escape(section.name)}</a>' for section in both if section.name
    )
    bodies = "\n".join(_section(section) for section in both)
    title = f"{file}: {names[0]} and {names[1]}"
    heads = "".join(f"<th></th><th>backends/{html.escape(name)}/{html.escape(file)}.py</th>" for name in names)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{html.escape(title)}</title>
<style>
{STYLE}
{HtmlFormatter(style="default").get_style_defs("td")}
{LAST}
</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p>{same} of {total} lines are the same; lines that differ are tinted.</p>
<nav>{links}</nav>
<table>
<colgroup><col class="n"><col><col class="n"><col></colgroup>
<thead><tr>{heads}</tr></thead>
{bodies}
</table>
</body>
</html>
"""


STYLE = """body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #1b1f24; background: #fff; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; }
nav { margin: 1rem 0; line-height: 2; }
nav a { margin-right: .8rem; color: #0b57d0; text-decoration: none; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
col.n { width: 3.2rem; }
th { text-align: left; position: sticky; top: 0; background: #f6f8fa; padding: .4rem .6rem; font-weight: 600; }
td { vertical-align: top; padding: 0 .6rem; white-space: pre-wrap; overflow-wrap: anywhere;
     font: 12.5px/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
td.n { text-align: right; color: #8c959f; user-select: none; }
tr.other td:nth-child(2) { background: #fff4e5; }
tr.other td:nth-child(4) { background: #e8f2ff; }
tbody tr:first-child td { border-top: 1px solid #d0d7de; padding-top: .5rem; }
tbody tr:last-child td { padding-bottom: .5rem; }"""
LAST = """td { background: #fff; }
td .sd { color: #57606a; font-style: normal; }"""
"""Styles that override those of the code."""


def _section(section: Section) -> str:
    sides = [[line.text for line in side if line is not None] for side in zip(*section.rows, strict=True)] or [[], []]
    coloured = [iter(_colour(lines)) for lines in sides]
    written = []
    for row in section.rows:
        cells = []
        for side, line in enumerate(row):
            number = str(line.number) if line is not None else ""
            text = next(coloured[side]) if line is not None else ""
            cells.append(f'<td class="n">{number}</td><td>{text}</td>')
        kind = "" if alike(row) else ' class="other"'
        written.append(f"<tr{kind}>{''.join(cells)}</tr>")
    name = f' id="{html.escape(section.name)}"' if section.name else ""
    return f"<tbody{name}>\n" + "\n".join(written) + "\n</tbody>"


def _colour(lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    text = highlight("\n".join(lines), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return str(text).removesuffix("\n").split("\n")


def _trim(lines: list[Line]) -> list[Line]:
    """The lines without blank ones at both ends, and with one blank line at most in a row."""
    kept = [line for index, line in enumerate(lines) if line.text.strip() or (index and lines[index - 1].text.strip())]
    while kept and not kept[0].text.strip():
        kept = kept[1:]
    while kept and not kept[-1].text.strip():
        kept = kept[:-1]
    return kept
