"""The page of the frameworks' own attention: a table for each question, and the meaning of its words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from backends import idiom_of
from parity_tests.behaviour.findings import COLUMNS as TITLES
from parity_tests.behaviour.findings import Records, near, questions
from parity_tests.behaviour.questions import Question
from parity_tests.third_party.attention import THIRD_PARTY, ThirdParty

FRAMEWORKS = {
    "torch": "PyTorch",
    "keras": "Keras",
    "keras_torch": "Keras on PyTorch",
    "keras_jax": "Keras on JAX",
    "jax": "JAX",
    "flax": "Flax",
    "mxnet": "MXNet",
    "onnx": "ONNX",
    "mlx": "MLX",
}

HEAD = """# Behaviour of the frameworks' own attention

Each answer was measured: every call ran the same cases, and its outputs were compared with those of each convention.
All were measured on a CPU, in float32 unless an answer says float64; kernels on a GPU differ.
`attention-parity behaviour` probes the installed frameworks again and reports what differs.

## What the calls disagree about
"""

TABLE = """
The number of calls that give each answer, without details. The questions are in the order of how many calls answer
otherwise than most; a call that lacks the argument is not counted.

| question | answers |
|---|---|"""

NOTES = """
PyTorch's `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` use their fast path in evaluation, without gradients,
for self-attention with an even number of heads. Queries, keys and values share one array there, so that NaN in a key is
also NaN in its value, and causal masking is not asked about.
"""

ABSENT = "no such argument"
"""The answer of a call that does not take what a question needs."""


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
class Section:
    """A section of the page: a question, its findings, and the meaning of their words.

    asks are the questions of the findings, if they have other names; threads are discussions as repository#number.
    """

    title: str
    findings: tuple[str, ...]
    explained: str
    conventions: tuple[Convention, ...]
    asks: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """The section's anchor on a page of Markdown."""
        return re.sub(r"[^\w -]", "", self.title.lower()).replace(" ", "-")


CONTEXT = "context, weights = attention.DotProductAttention()(queries, keys, values, "

SECTIONS = (
    Section(
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
    Section(
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
    Section(
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
                "ignored; gradients NaN",
                "the scores are replaced, so that the output is right; the gradient of a query still meets the key",
                "weights = attention.masked_softmax(attention.scaled_dot_score(queries, keys), mask=mask)",
            ),
        ),
    ),
    Section(
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
    Section(
        "Half precision",
        ("float16", "bfloat16"),
        "The worst error of outputs and gradients, in eps of the dtype times the largest entry. An error or a "
        "crash is that of the framework; none means that the dtype is not supported.",
        (),
        ("half",),
    ),
    Section(
        "Lengths",
        ("beyond", "below"),
        "Lengths beyond the keys, and below 0. Calls that are not in the table take no lengths.",
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
    Section(
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
    Section(
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
    Section(
        "Causal with fewer queries than keys",
        ("causal", "causal_one"),
        "The call's own causal masking: `is_causal=True`, in Keras's layers `use_causal_mask=True`, and a window "
        "without keys behind where the call is named with `local_window_size`.",
        (
            Convention(
                "top left",
                "query i attends to keys 0 to i, and the last keys are hidden from every query",
                f"{CONTEXT}mask=attention.causal_mask(5, 7))",
            ),
            Convention(
                "bottom right",
                "the last query attends to every key, as a step with a cache needs",
                f"{CONTEXT}mask=attention.causal_mask(5, 7, offset=2))",
            ),
            Convention("no key is hidden", "the argument has no effect"),
            Convention("attends to the first key alone", "what the top left means for a single query"),
            Convention("attends to every key", "what the bottom right means for a single query"),
            Convention("error", "the call raises; PyTorch's `nn.MultiheadAttention` needs a mask beside the flag"),
        ),
        threads=("pytorch/pytorch#108108", "microsoft/onnxruntime#29020", "ml-explore/mlx#2835"),
    ),
    Section(
        "Causal together with a mask",
        ("mask_and_causal", "padding_and_causal", "lengths_and_causal"),
        "The same argument beside a mask for each query, a padding mask, or lengths, where the call takes those.",
        (
            Convention(
                "both are applied",
                "a key is open where both leave it open",
                f"{CONTEXT}mask=attention.mask_and(mask, attention.causal_mask(5, 5)))",
            ),
            Convention("the mask is ignored", "the argument is taken for a hint that the mask is causal"),
            Convention(
                "every query attends to the first key alone",
                "causal masking is made for the one row of the padding mask, which all queries share",
            ),
            Convention("causal is ignored", "the mask alone is applied", f"{CONTEXT}mask=mask)"),
            Convention(
                "both are applied, causal from the top left", "query i attends to keys 0 to i within the length"
            ),
            Convention(
                "both are applied, causal from the bottom right", "the last query attends to every key of the length"
            ),
            Convention(
                "both are applied, causal from the last key of each length",
                "the last query stands at the last key of its own sequence",
            ),
            Convention("the lengths are ignored", "causal masking alone is applied"),
            Convention(
                "error",
                "the call raises; PyTorch's `nn.MultiheadAttention` needs a mask for each query beside the flag, and "
                "onnxruntime takes no mask of one row",
            ),
        ),
        threads=("pytorch/pytorch#99282", "pytorch/pytorch#100709"),
    ),
    Section(
        "Float mask",
        ("float_mask",),
        "A mask of floating numbers, some of them 0, passed unchanged as the mask, and as the bias where the call is "
        "named with `bias`.",
        (
            Convention("added to the scores", "it is a bias", f"{CONTEXT}bias=mask)"),
            Convention("may attend where it is not 0", "it is cast to booleans", f"{CONTEXT}mask=mask != 0)"),
            Convention(
                "hidden where it is not 0", "it is cast to booleans, and True hides", f"{CONTEXT}mask=mask == 0)"
            ),
            Convention("error", "the call raises"),
        ),
    ),
    Section(
        "Key head of a query head",
        ("key_head",),
        "Which head of keys a query head h reads where there are fewer of them.",
        (
            Convention(
                "repeated",
                "key head ⌊h · key_heads / query_heads⌋: neighbours share one",
                f"{CONTEXT[:-2]})",
            ),
            Convention(
                "tiled",
                "key head h mod key_heads",
                "context, weights = attention.DotProductAttention()(queries, {xp}.tile(keys, (1, 3, 1, 1)), "
                "{xp}.tile(values, (1, 3, 1, 1)))",
            ),
            Convention("error", "the call raises: it wants as many heads of keys as of queries"),
        ),
    ),
    Section(
        "Soft cap and mask",
        ("softcap_and_mask",),
        "Whether softcap · tanh(scores / softcap) is computed before keys are hidden or behind that.",
        (
            Convention(
                "before the mask",
                "hidden keys have no weight",
                "context, weights = attention.DotProductAttention(softcap=0.25)(queries, keys, values, mask=mask)",
            ),
            Convention("behind the mask", "the cap makes -softcap of -inf, and hidden keys get weight"),
            Convention("the cap is ignored", "the argument has no effect"),
            Convention("error", "the call raises; Keras has a soft cap in JAX on a TPU alone"),
        ),
        threads=("onnx/onnx#7865",),
    ),
    Section(
        "Left padding",
        ("left_padding",),
        "A causal mask that also hides the first keys of each sequence, so that the first queries may attend to "
        "nothing: what those get, and what the others get. Calls that hide keys by lengths cannot say it.",
        (
            Convention("the padding gets 0, uniform, NaN", "as in a fully masked row"),
            Convention(
                "the rest as if padded on the right",
                "a query that may attend to some key gets what it would get without the padding",
            ),
            Convention("gradients NaN", "the queries of the padding spoil the gradients of all"),
        ),
        threads=("pytorch/pytorch#103749",),
    ),
    Section(
        "Steps with a cache",
        ("steps", "steps_causal"),
        "One query, key and value in each call, which keeps the earlier keys and values: against one call with all of "
        "them and a causal mask. Then the same with `is_causal=True`.",
        (
            Convention(
                "equal to the full pass",
                "each query attends to the keys so far, as with `memory = layer.extend(memory, keys, values)` here",
            ),
            Convention(
                "attends to the first key alone",
                "causal masking starts from the top left, where the single query is in front of all keys",
            ),
        ),
        threads=("google/flax#5591",),
    ),
)


def page(records: Records) -> str:
    """The whole page, as Markdown."""
    return "\n".join([*_opening(records), *(line for section in SECTIONS for line in _section(section, records)), ""])


def _opening(records: Records) -> Iterator[str]:
    yield HEAD
    rows = [(section, name) for section in SECTIONS if section.conventions for name in section.findings]
    rows.sort(key=lambda row: -disagreement(row[1], records))
    first, second, third, *_ = dict.fromkeys(section.title for section, _ in rows)
    yield f"Most of all about: *{first}*, *{second}*, *{third}*."
    yield TABLE
    for section, name in rows:
        counts = "; ".join(f"{words}: {number}" for words, number in _counts(name, records).most_common())
        case = f", {CASE_OF[name]}" if name in CASE_OF else ""
        yield f"| [{section.title}](#{section.anchor}){case} | {counts} |"
    yield NOTES
    yield "Versions:"
    yield ""
    for module, title in FRAMEWORKS.items():
        targets = [target.id for target in THIRD_PARTY if target.module == module]
        versions = dict.fromkeys(entry["versions"] for name in targets for entry in records.get(name, []))
        if versions:
            yield f"- {title}: {'; '.join(versions)}"
    yield ""


def _counts(name: str, records: Records) -> Counter[str]:
    """How many calls give each answer to a question, without its details; those that lack the argument aside."""
    every = [records[target.id][-1]["found"] for target in THIRD_PARTY if target.id in records]
    words = [re.split(r"; | \(| in \d", _plain(found[name]))[0] for found in every if name in found]
    return Counter(word for word in words if word != ABSENT)


def disagreement(name: str, records: Records) -> int:
    """How many calls answer a question otherwise than most."""
    numbers = _counts(name, records).values()
    return sum(numbers) - max(numbers, default=0)


def _answers(section: Section, records: Records) -> list[tuple[ThirdParty, str]]:
    """The calls that were asked, and their answers."""
    recorded = [target for target in THIRD_PARTY if target.id in records]
    answers = [(target, answer_of(section, records[target.id][-1]["found"])) for target in recorded]
    return [(target, words) for target, words in answers if words]


CASE_OF = {
    "large": "to ±2e6",
    "huge": "to ±2e10",
    "beyond": "beyond the keys",
    "below": "below 0",
    "causal": "5 queries, 7 keys",
    "causal_one": "1 query, 7 keys",
    "mask_and_causal": "mask",
    "padding_and_causal": "padding mask",
    "lengths_and_causal": "lengths",
    "steps": "plain",
    "steps_causal": "causal",
}
"""The difference between the findings of a section, where they have none of a dtype."""


def answer_of(section: Section, found: dict[str, str]) -> str:
    """The findings of a section in one line; empty if there are none."""
    words = {name: _plain(found[name]) for name in section.findings if name in found}
    if len({*words.values()}) <= 1 and (len(words) == len(section.findings) or ABSENT in words.values()):
        return next(iter(words.values()), "")
    return "; ".join(f"{CASE_OF.get(name, name)}: {text}" for name, text in words.items())


def _plain(words: str) -> str:
    """The words without signs that need a key."""
    return re.sub(r"≤ (\d+)", r"within \1 eps", words.removeprefix("True = "))


def _older(section: Section, records: Records) -> Iterator[str]:
    """The findings of older versions that differ."""
    lines = []
    for target in THIRD_PARTY:
        *older, newest = records.get(target.id, [{}])
        for entry in older:
            for name in section.findings:
                words = newest["found"].get(name, "")
                was = entry["found"].get(name, words)
                if was != words and not near(was, words):
                    lines.append(f"- {target.call} in {entry['versions']}: {TITLES[name]}: {was}, now {words}")
    if lines:
        yield from ("Older versions differ:", "", *lines, "")


def _section(section: Section, records: Records) -> Iterator[str]:
    yield f"## {section.title}"
    yield ""
    yield section.explained
    yield ""
    yield from _table(section, records)
    yield ""
    for convention in section.conventions:
        line = convention.line_in("torch") if convention.line or convention.lines else ""
        yield f"- **{convention.words}**: {convention.meaning}." + (f"<br>`{line}`" if line else "")
    yield ""
    yield from _older(section, records)
    if section.threads:
        links = (f"[{name}](https://github.com/{name.replace('#', '/issues/')})" for name in section.threads)
        yield f"Discussed in {', '.join(links)}."
        yield ""
    yield "Cases:"
    yield ""
    for question in _questions(section, records):
        case = f"`attention-parity show {question.source}`" if question.source else ""
        yield f"- {', with '.join(filter(None, (case, question.change)))}"
    yield ""


def _table(section: Section, records: Records) -> Iterator[str]:
    """A row for each answer in each framework, those without the argument last."""
    answers = _answers(section, records)
    rows: dict[tuple[str, str], dict[str, None]] = {}
    for target, answer in sorted(answers, key=lambda pair: pair[1] == ABSENT):
        alike = {words for other, words in answers if _function(other) == _function(target)} == {answer}
        rows.setdefault((FRAMEWORKS[target.module], answer), {})[name_of(target, settings=not alike)] = None
    yield "| framework | call | answer |"
    yield "|---|---|---|"
    for (framework, answer), calls in rows.items():
        yield f"| {framework} | {'<br>'.join(calls)} | {answer} |"


def _function(target: ThirdParty) -> tuple[str, str]:
    return target.module, target.call.partition(", ")[0]


def name_of(target: ThirdParty, settings: bool) -> str:
    """The name of a call, with its settings where other settings of the same function differ."""
    name, *rest = target.call.split(", ")
    marked = (f"`{setting}`" if "_" in setting or "=" in setting else setting for setting in rest)
    return ", ".join([f"`{name}`", *(marked if settings else ())])


def _questions(section: Section, records: Records) -> list[Question]:
    """The questions of a section, each once."""
    distinct: dict[tuple[str, str], Question] = {}
    for target in THIRD_PARTY:
        if target.id in records:
            by_name = questions(target)
            for question in (by_name[name] for name in section.asks or section.findings if name in by_name):
                distinct.setdefault((question.source, question.change), question)
    return list(distinct.values())


def conventions() -> Iterable[Convention]:
    """Every convention with a line."""
    every = (convention for section in SECTIONS for convention in section.conventions)
    return [convention for convention in every if convention.line or convention.lines]
