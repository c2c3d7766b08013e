"""Turn the docstrings of the project, which are plain text, into reStructuredText for the API pages."""

from __future__ import annotations

import re
from typing import Any

SECTION = re.compile(r"(Args|Returns|Raises|Example|Parameters|Yields):$")
ARRAYS = "Arrays:"
"""What replaces the section of a layer's parameters, which are arrays: Sphinx takes "Parameters" for arguments."""
SPECIAL = re.compile(r"([*|\\]|(?<=\w)_(?!\w))")


def as_restructured_text(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Set formulas and examples as literal blocks, and escape the rest, in place."""
    written: list[str] = []
    section = ""
    formula = range(2, next((end for end in range(2, len(lines)) if not lines[end]), len(lines)))
    if not any(" = " in lines[position] for position in formula):
        formula = range(0)
    for position, line in enumerate(lines):
        match = SECTION.match(line)
        if position in formula and not match:
            written += ["::", ""] if position == formula.start else []
            written.append(f"    {line}")
        elif match:
            section = match.group(1)
            written += ["", ARRAYS if section == "Parameters" else line]
        elif section == "Returns" and line.startswith("        "):  # where Sphinx takes no further line
            written[-1] += f" {escape(line.strip())}"
        elif line and not line.startswith(" "):
            section = ""
            written.append(escape(line))
        elif line.startswith("    ") and section in ("", "Example"):
            if not position or not lines[position - 1].startswith("    "):
                written += ([] if section else [""]) + ["    ::" if section else "::", ""]
            written.append(f"    {line}" if section else line)
        else:
            written.append(escape(line))
    lines[:] = written


def escape(line: str) -> str:
    """A line of prose without markup but that of code."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        f"`{part}`" if part.startswith("`") and len(part) > 2 else SPECIAL.sub(r"\\\1", part.replace("`", ""))
        for part in parts
    )
