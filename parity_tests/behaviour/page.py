"""The page of what the frameworks' own attention does: a table made of what is kept, and what its words mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from parity_tests.behaviour.findings import COLUMNS as QUESTIONS
from parity_tests.behaviour.findings import Kept, near
from parity_tests.behaviour.questions import Asked, asked
from parity_tests.third_party.attention import PEERS, Peer

FRAMEWORKS = {"torch": "PyTorch", "keras": "Keras", "jax": "JAX", "flax": "Flax", "mxnet": "MXNet", "onnx": "ONNX"}

HEAD = """# What the frameworks' own attention does

Every word in the table was measured: the calls were asked, and their answers classified.
`attention-parity behaviour` asks those that are installed again and says what is different; `--write` writes this page.
Each entry leads to the cases that show it, what it means, and the line that does the same with our functions.
"""

NOTES = """
∇ is said of gradients; float64 where it does otherwise than float32. All of it was measured on a CPU: a GPU has other
kernels. PyTorch's `nn.MultiheadAttention` takes its fast path in evaluation, without gradients, for self-attention with
an even number of heads: one array holds queries, keys and values, so that NaN in a key is NaN in its value, too.
"""


@dataclass(frozen=True)
class Convention:
    """What some frameworks do, and the line that does it with our functions: with {xp} for the framework's name.

    Given are queries, keys, values, scores, and a mask or valid_lens; the line makes weights or a context.
    """

    words: str
    meaning: str
    line: str = ""
    lines: dict[str, str] = field(default_factory=dict)

    def said(self, backend: str) -> str:
        """The line in a framework; empty if it is not given there."""
        return self.lines.get(backend, "") or self.line.format(xp=NAMESPACES[backend])


NAMESPACES = {"torch": "torch", "tf": "tf", "jax": "jnp", "mxnet": "np"}


@dataclass(frozen=True)
class Column:
    """A column of the table: the findings that stand in it, and what its words mean."""

    title: str
    questions: tuple[str, ...]
    explained: str
    conventions: tuple[Convention, ...]
    asks: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """Where a page of Markdown has the section."""
        return re.sub(r"[^\w -]", "", self.title.lower()).replace(" ", "-")


COLUMNS = (
    Column(
        "Fully masked rows",
        ("closed",),
        "A query that may attend to nothing: what its context is, and whether gradients flow through it.",
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
                "a number is subtracted from hidden scores, and float64 keeps what is left of them",
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
                "what is hidden changes nothing",
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
                "what is hidden changes nothing",
                "context, weights = attention.DotProductAttention()(queries, keys, values, mask=mask)",
            ),
            Convention(
                "NaN",
                "a mask that is added to the scores leaves NaN as it is",
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
        "Scores to ±2e6, then to ±1.6e10, with gaps of 1,000 and more: whether a hidden key can win over an open one.",
        (
            Convention("right", "no hidden key wins", "weights = attention.masked_softmax(scores, mask=mask)"),
            Convention(
                "wrong",
                "a finite number is subtracted from hidden scores, or put in their place, and open ones are lower",
                "weights = attention.masked_softmax({xp}.where(mask, scores, scores - 1e9))",
            ),
        ),
    ),
    Column(
        "Half precision",
        ("float16", "bfloat16"),
        "The worst error of outputs and gradients, in eps of the largest entry, in float16 (f16) and bfloat16 (bf16). "
        "An error or a crash is the framework's own; none means that it does not have the type.",
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
                "memory behind the array is read: rows are wrong or NaN, or the process crashes, by chance",
            ),
            Convention("wrong, NaN, error, crash", "an error is told; in the other rows, not every key is hidden"),
        ),
    ),
    Column(
        "True in a mask",
        ("polarity",),
        "What a boolean mask means that is handed over as it is. `parity_tests.polarity.polarity(attend)` says it "
        "of any function.",
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
        "Gradients where a mask hides keys and no row is closed, against the specification's tolerances.",
        (
            Convention("right", "within the tolerance"),
            Convention(
                "as float32",
                "float64 goes in and comes out, and the softmax between is that of float32",
                lines={
                    "torch": "weights = attention.masked_softmax(scores.float(), mask=mask).double()",
                    "jax": "weights = attention.masked_softmax(scores.astype('float32'), mask=mask).astype('float64')",
                },
            ),
            Convention("none", "it gives no gradients"),
        ),
    ),
)


def page(kept: Kept) -> str:
    """The whole page, as Markdown."""
    return "\n".join([*_table(kept), *(line for column in COLUMNS for line in _section(column, kept)), ""])


def _table(kept: Kept) -> Iterator[str]:
    yield HEAD
    yield f"| call | {' | '.join(column.title for column in COLUMNS)} |"
    yield f"|---|{'---|' * len(COLUMNS)}"
    for peer in PEERS:
        if peer.id in kept:
            found = kept[peer.id][-1]["found"]
            entries = (f"[{_entry(column, peer, found)}](#{column.anchor})" for column in COLUMNS)
            yield f"| {_call(peer)} | {' | '.join(entries)} |"
    yield NOTES
    yield "Asked were:"
    yield ""
    for module, title in FRAMEWORKS.items():
        kept_of = [own for peer in PEERS if peer.module == module for own in kept.get(peer.id, [])]
        versions = dict.fromkeys(own["versions"] for own in kept_of)
        if versions:
            yield f"- {title}: {'; '.join(versions)}"
    yield from _older(kept)
    yield ""


def _call(peer: Peer) -> str:
    name, *rest = peer.call.split(", ")
    return "<br>".join([f"{FRAMEWORKS[peer.module]} `{name}`", *(f"`{own}`" if "_" in own else own for own in rest)])


SHORT = {
    "float16": "f16 ",
    "bfloat16": "bf16 ",
    "beyond": "beyond: ",
    "below": "below 0: ",
    "large": "2e6: ",
    "huge": "2e10: ",
}


def _entry(column: Column, peer: Peer, found: dict[str, str]) -> str:
    """What stands in a cell: every finding of the column, one below the other."""
    told = [(name, found[name]) for name in column.questions if name in found]
    if not told:
        return "takes none"
    if len(told) > 1 and len({words for _, words in told}) == 1 and column.title != "Half precision":
        return _broken(told[0][1])
    return "<br>".join((SHORT[name] if len(told) > 1 else "") + _broken(words) for name, words in told)


def _broken(words: str) -> str:
    """The words with what is of float64 in a line of its own."""
    words = words.removeprefix("True = ").replace("; ∇", "<br>∇")
    return re.sub(r" \((float64: .*)\)$", r"<br>\1", words)


def _older(kept: Kept) -> Iterator[str]:
    """What older versions did otherwise."""
    lines = []
    for peer in PEERS:
        *older, newest = kept.get(peer.id, [None])
        for own in older:
            assert own is not None and newest is not None
            for name, words in newest["found"].items():
                was = own["found"].get(name, words)
                if was != words and not near(was, words):
                    title = QUESTIONS[name]
                    lines.append(f"- {peer.call} in {own['versions']}: {title}: {was}, now {words}")
    if lines:
        yield from ("", "Other versions did otherwise:", "", *lines)


def _section(column: Column, kept: Kept) -> Iterator[str]:
    yield f"## {column.title}"
    yield ""
    yield column.explained
    yield ""
    for own in column.conventions:
        says = own.said("torch") if own.line or own.lines else ""
        yield f"- **{own.words}**: {own.meaning}." + (f"<br>`{says}`" if says else "")
    yield ""
    yield "Shown by:"
    yield ""
    for question in _asked(column, kept):
        case = f"`attention-parity show {question.source}`" if question.source else ""
        yield f"- {', with '.join(filter(None, (case, question.change)))}"
    yield ""


def _asked(column: Column, kept: Kept) -> list[Asked]:
    """The cases of a column, each once."""
    found: dict[tuple[str, str], Asked] = {}
    for peer in PEERS:
        questions = asked(peer.operator, peer.takes)
        for name in column.asks or column.questions:
            if name in questions and peer.id in kept:
                found.setdefault((questions[name].source, questions[name].change), questions[name])
    return list(found.values())


def conventions() -> Iterable[Convention]:
    """Every convention with a line."""
    return [own for column in COLUMNS for own in column.conventions if own.line or own.lines]
