"""Where two models begin to differ: the calls, the arrays, and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from parity_tests.models.calls import Call, Seen


class Given(NamedTuple):
    """An array that agrees: what it is, and as the expected side has it."""

    name: str
    seen: Seen


@dataclass(frozen=True)
class Difference:
    """Where two models begin to differ.

    expected and actual are the calls: of whose outputs the first differs (kind "output"); whose input the code of
    `parent` makes of the output of `before` (kind "input"); or in whose backward pass it lies (kind "gradient"). array
    is the pair of arrays there, and given are arrays that agree and that they are computed from, the nearest first.
    """

    kind: Literal["output", "input", "gradient"]
    expected: Call
    actual: Call
    expected_array: Seen
    actual_array: Seen
    given: tuple[Given, ...] = ()
    before: Call | None = None
    parent: Call | None = None

    @property
    def sentence(self) -> str:
        """Where it is, in one sentence."""
        same = (self.actual.name, self.actual.kind) == (self.expected.name, self.expected.kind)
        other = "" if same else f", {self.expected.name} ({self.expected.kind}) on the expected side"
        name = f"{self.actual.name} ({self.actual.kind}{other})"
        which = "" if self.expected_array.name == "output" else f" {self.expected_array.name}"
        if self.kind == "output":
            return f"{name}: its inputs agree, its output{which} does not"
        if self.kind == "gradient" and self.parent is not None:
            return (
                f"{name}: all outputs agree; the gradient that reaches its output does not, in the backward pass of "
                f"the code of {self.parent.name} itself"
            )
        if self.kind == "gradient":
            return f"{name}: all outputs agree, and the gradient of its own; the gradient that it passes on does not"
        before = "the inputs" if self.before is None else f"the output of {self.before.name}"
        around = "the model" if self.parent is None else self.parent.name
        return (
            f"between {before} and the input {self.expected_array.name} of {self.actual.name}, in the code of {around} "
            f"itself"
        )
