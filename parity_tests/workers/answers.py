"""Answers: the outcome of a cell in a worker, stored in a recording and read by the judge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from backends.schema import build

LONGEST_MESSAGE, LONGEST_TRACE = 4_000, 40_000
"""The maximum length of a message and of a trace, which keep both ends."""

AnswerStatus = Literal["ok", "not-applicable", "not-implemented", "error", "crash", "timeout", "missing"]

RECORDED = tuple(status for status in get_args(AnswerStatus) if status != "missing")
"""The statuses of cells that were run."""

UNANSWERED: tuple[AnswerStatus, ...] = ("error", "crash", "timeout", "missing")
"""The statuses of cells that failed to give an answer."""


@dataclass(frozen=True)
class Answer:
    """The status of a cell, with a message unless it is ok; arrays are stored separately.

    trace is the end of standard error, or a traceback; changed lists the inputs modified by the call, and missing the
    quantities that the target does not return.
    """

    status: AnswerStatus = "ok"
    message: str = ""
    trace: str = ""
    seconds: float = 0.0
    compile_seconds: float = 0.0
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", harmless(self.message, LONGEST_MESSAGE))
        object.__setattr__(self, "trace", harmless(self.trace, LONGEST_TRACE))

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Answer:
        """Read the answer from the header of a frame or a file; ignore other entries.

        Raises: SchemaError if an entry is invalid.
        """
        answer: Answer = build(cls, {name: header[name] for name in FIELDS if name in header})
        return answer

    def as_json(self) -> dict[str, Any]:
        """The answer as an object: its status and non-empty fields."""
        return {name: value for name, value in asdict(self).items() if value or name == "status"}

    @property
    def ok(self) -> bool:
        """Whether there are arrays."""
        return self.status == "ok"

    @property
    def withheld(self) -> tuple[str, ...]:
        """The outputs that the target does not return; gradients are those of the others."""
        return tuple(name for name in self.missing if not is_gradient(name))


def harmless(text: str, most: int) -> str:
    """Remove colours from an untrusted text, replace control characters and lone surrogates, and shorten it."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    if len(text) > most:
        text = f"{text[: most // 2]} ... {len(text) - most:,} characters ... {text[-(most // 2) :]}"
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def is_gradient(name: str) -> bool:
    """Whether a quantity is a gradient."""
    return name.startswith("gradient_")


FIELDS = tuple(field.name for field in fields(Answer))

MISSING = Answer("missing", "the worker returned no answer")
