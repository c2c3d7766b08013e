"""The page of the frameworks' own attention: a table of the recorded findings, and the meaning of its words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from backends import idiom_of
from parity_tests.behaviour.findings import COLUMNS as TITLES
from parity_tests.behaviour.findings import Records, near, questions
from parity_tests.behaviour.questions import Question
from parity_tests.third_party.attention import THIRD_PARTY, ThirdParty

FRAMEWORKS = {"torch": "PyTorch", "keras": "Keras", "jax": "JAX", "flax": "Flax", "mxnet": "MXNet", "onnx": "ONNX"}

HEAD = """# Behaviour of the frameworks' own attention

Every entry of the table was measured: each call ran the same cases, and its outputs were classified.
`attention-parity behaviour` probes the installed frameworks again and reports what differs; `--write` writes this page.
Each entry links to the cases that show it, its meaning, and the line with the same behaviour in this library.
"""

NOTES = """
∇ marks gradients, and float64 a finding that differs from that in float32. All entries were measured on a CPU; kernels
on a GPU differ. PyTorch's `nn.MultiheadAttention` uses its fast path in evaluation, without gradients, for
self-attention with an even number of heads: queries, keys and values share one array, so that NaN in a key is also NaN
in its value.
"""


@dataclass(frozen=True)
class Convention:
    """A behaviour, and the line with the same behaviour in this library; {xp} is replaced by the framework's name.

    The line reads queries, keys, values, scores, and a mask or valid_lens, and makes weights or a context. lines has
    those of single frameworks.
    """

    words: str
    meaning: str
    line: str = ""
    lines: dict[str, str] = field(default_factory=dict)

    def line_in(self, backend: str) -> str:
        """The line in a framework; empty if the page has none there."""
        return self.lines.get(backend, "") or self.line.format(xp=idiom_of(backend).namespace)


@dataclass(frozen=True)
class Column:
    """A column of the table: its findings, and the meaning of its words.

    asks are the questions of the findings, if they have other names.
    """

    title: str
    findings: tuple[str, ...]
    explained: str
    conventions: tuple[Convention, ...]
    asks: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """The section's anchor on a page of Markdown."""
        return re.sub(r"[^\w -]", "", self.title.lower()).replace(" ", "-")


COLUMNS = (
    Column(
        "Fully masked rows",
        ("fully_masked",),
        "The context of a query that may attend to nothing, and whether gradients flow through it.",
        (
            Convention(
                "0",
                "weights and context are 0; so are gradients, as the specification has it",
                "weights = attention.masked_softmax(scores, mask=mask)",
            ),
            Convention(
                "uniform",
                "the mean of all values, padding too, as by any large finite fill; gradients flow to all of them",
                "weights = attention.masked_softmax({xp}.where(mask, scores, -1e6))",
            ),
            Convention(
                "as without a mask",
                "a number is subtracted from hidden scores, and float64 preserves their differences",
                "weights = attention.masked_softmax({xp}.where(mask, scores, scores - 1e9))",
            ),
            Convention(
                "NaN",
                "a softmax of nothing but -inf is 0/0",
                lines={
                    "torch": "weights = attention.masked_softmax(scores, mask=mask) / mask.any(-1, keepdim=True)",
                    "jax": "weights = attention.masked_softmax(scores, mask=mask) / mask.any(-1, keepdims=True)",
                },
            ),
        ),
    ),
    Column(
        "NaN in a hidden value",
        ("hidden_value",),
        "NaN in values that no query may attend to, as in padding that was never written.",
        (
            Convention(
                "ignored",
                "hidden entries change nothing",
                "context, weights = attention.attention_pooling(scores, values, mask=mask)",
            ),
            Convention(
                "NaN",
                "a weight of 0 times NaN is NaN, in every row",
                "context = attention.masked_softmax(scores, mask=mask) @ values",
            ),
        ),
    ),
    Column(
        "NaN in a hidden key",
        ("hidden_key",),
        "NaN in keys that no query may attend to.",
        (
            Convention(
                "ignored",
                "hidden entries change nothing",
                "context, weights = attention.DotProductAttention()(queries, keys, values, mask=mask)",
            ),
            Convention(
                "NaN",
                "adding a mask to the scores preserves NaN",
                "weights = attention.masked_softmax(scores + {xp}.where(mask, 0.0, -1e9))",
            ),
            Convention(
                "ignored, ∇ NaN",
                "the scores are replaced, so that the output is right; the gradient of a query still meets the key",
                "weights = attention.masked_softmax(attention.scaled_dot_score(queries, keys), mask=mask)",
            ),
        ),
    ),
    Column(
        "Large scores",
        ("large", "huge"),
        "Scores to ±2e6, then to ±1.6e10, with gaps of 1,000 and more: whether a hidden key can get more weight than "
        "an open one.",
        (
            Convention("right", "hidden keys have no weight", "weights = attention.masked_softmax(scores, mask=mask)"),
            Convention(
                "wrong",
                "a finite number is subtracted from hidden scores, or replaces them, and open ones are lower",
                "weights = attention.masked_softmax({xp}.where(mask, scores, scores - 1e9))",
            ),
        ),
    ),
    Column(
        "Half precision",
        ("float16", "bfloat16"),
        "The worst error of outputs and gradients, in eps of the largest entry, in float16 (f16) and bfloat16 (bf16). "
        "An error or a crash is that of the framework; none means that the dtype is not supported.",
        (),
        ("half",),
    ),
    Column(
        "Lengths",
        ("beyond", "below"),
        "Lengths beyond the keys, and below 0. Most calls take no lengths.",
        (
            Convention(
                "clipped",
                "beyond the keys means all of them, below 0 none",
                "weights = attention.masked_softmax(scores, valid_lens)",
            ),
            Convention(
                "undefined",
                "memory outside the array is read or written: rows are wrong or NaN, or the process crashes, by chance",
            ),
            Convention("wrong, NaN, error, crash", "the call fails, or not every key is hidden in some rows"),
        ),
    ),
    Column(
        "True in a mask",
        ("polarity",),
        "What True means in a boolean mask that is passed unchanged. `parity_tests.polarity.polarity(attend)` detects "
        "this for any function.",
        (
            Convention(
                "may attend", "as in the specification", "weights = attention.masked_softmax(scores, mask=mask)"
            ),
            Convention("hidden", "the opposite", "weights = attention.masked_softmax(scores, mask=~mask)"),
        ),
    ),
    Column(
        "Gradients",
        ("gradients",),
        "Gradients where a mask hides keys and no row is fully masked, against the specification's tolerances.",
        (
            Convention("right", "within the tolerance"),
            Convention(
                "as float32",
                "inputs and outputs are float64, but the softmax is computed in float32",
                lines={
                    "torch": "weights = attention.masked_softmax(scores.float(), mask=mask).double()",
                    "jax": "weights = attention.masked_softmax(scores.astype('float32'), mask=mask).astype('float64')",
                },
            ),
            Convention("none", "no gradients are available"),
        ),
    ),
)


def page(records: Records) -> str:
    """The whole page, as Markdown."""
    return "\n".join([*_table(records), *(line for column in COLUMNS for line in _section(column, records)), ""])


def _table(records: Records) -> Iterator[str]:
    yield HEAD
    yield f"| call | {' | '.join(column.title for column in COLUMNS)} |"
    yield f"|---|{'---|' * len(COLUMNS)}"
    for target in THIRD_PARTY:
        if target.id in records:
            found = records[target.id][-1]["found"]
            entries = (f"[{_entry(column, found)}](#{column.anchor})" for column in COLUMNS)
            yield f"| {_call(target)} | {' | '.join(entries)} |"
    yield NOTES
    yield "Versions:"
    yield ""
    for module, title in FRAMEWORKS.items():
        targets = [target.id for target in THIRD_PARTY if target.module == module]
        versions = dict.fromkeys(entry["versions"] for name in targets for entry in records.get(name, []))
        if versions:
            yield f"- {title}: {'; '.join(versions)}"
    yield from _older(records)
    yield ""


def _call(target: ThirdParty) -> str:
    name, *rest = target.call.split(", ")
    settings = (f"`{setting}`" if "_" in setting else setting for setting in rest)
    return "<br>".join([f"{FRAMEWORKS[target.module]} `{name}`", *settings])


SHORT = {
    "float16": "f16 ",
    "bfloat16": "bf16 ",
    "beyond": "beyond: ",
    "below": "below 0: ",
    "large": "2e6: ",
    "huge": "2e10: ",
}


def _entry(column: Column, found: dict[str, str]) -> str:
    """A cell of the table: every finding of the column, one below the other."""
    words = {name: found[name] for name in column.findings if name in found}
    if not words:
        return "takes none"
    if len(words) > 1 and len({*words.values()}) == 1 and column.title != "Half precision":
        return _broken(next(iter(words.values())))
    return "<br>".join((SHORT[name] if len(words) > 1 else "") + _broken(text) for name, text in words.items())


def _broken(words: str) -> str:
    """The words with those for float64 in a line of their own."""
    words = words.removeprefix("True = ").replace("; ∇", "<br>∇")
    return re.sub(r" \((float64: .*)\)$", r"<br>\1", words)


def _older(records: Records) -> Iterator[str]:
    """The findings of older versions that differ."""
    lines = []
    for target in THIRD_PARTY:
        *older, newest = records.get(target.id, [{}])
        for entry in older:
            for name, words in newest["found"].items():
                was = entry["found"].get(name, words)
                if was != words and not near(was, words):
                    lines.append(f"- {target.call} in {entry['versions']}: {TITLES[name]}: {was}, now {words}")
    if lines:
        yield from ("", "Different behaviour of other versions:", "", *lines)


def _section(column: Column, records: Records) -> Iterator[str]:
    yield f"## {column.title}"
    yield ""
    yield column.explained
    yield ""
    for convention in column.conventions:
        line = convention.line_in("torch") if convention.line or convention.lines else ""
        yield f"- **{convention.words}**: {convention.meaning}." + (f"<br>`{line}`" if line else "")
    yield ""
    yield "Cases:"
    yield ""
    for question in _questions(column, records):
        case = f"`attention-parity show {question.source}`" if question.source else ""
        yield f"- {', with '.join(filter(None, (case, question.change)))}"
    yield ""


def _questions(column: Column, records: Records) -> list[Question]:
    """The questions of a column, each once."""
    distinct: dict[tuple[str, str], Question] = {}
    for target in THIRD_PARTY:
        if target.id in records:
            by_name = questions(target)
            for question in (by_name[name] for name in column.asks or column.findings if name in by_name):
                distinct.setdefault((question.source, question.change), question)
    return list(distinct.values())


def conventions() -> Iterable[Convention]:
    """Every convention with a line."""
    return [
        convention for column in COLUMNS for convention in column.conventions if convention.line or convention.lines
    ]
