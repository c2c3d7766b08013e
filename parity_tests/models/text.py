"""A comparison of two models as text for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator

from parity_tests.models.result import Result
from parity_tests.reports.ci_summary import OTHER_SIGN, SIGNS

WIDTH = 110
MOST_RED = 3

KINDS = {
    "output": ("output", "outputs"),
    "gradient": ("gradient", "gradients"),
    "state": ("array of state", "arrays of state"),
    "trained": ("trained array", "trained arrays"),
}
"""Words for the kinds of quantities."""


def as_text(comparison: Result) -> str:
    """The comparison in at most 30 lines: verdict, first difference, what it looks like, what was assumed."""
    lines: list[str] = []

    def add(title: str, words: str) -> None:
        lines.extend(textwrap.wrap(words, WIDTH, initial_indent=f"{title:12}", subsequent_indent=" " * 12)[:4])

    add("actual", comparison.actual)
    add("expected", comparison.expected)
    add("inputs", ", ".join(f"{name}: {kind}" for name, kind in comparison.inputs.items()))
    pairing = comparison.pairing
    counts = [len(pairing.pairs), pairing.num_with_other_axes, len(pairing.only_actual), len(pairing.only_expected)]
    partners = "{} pairs, {} with other axes, {} and {} without a partner".format(*counts)
    add("weights", f"{comparison.weights}, seed {comparison.seed}: {partners}")
    for words in red_lines(comparison):
        add(*words)
    for verdict in comparison.undecided_verdicts[:MOST_RED]:
        add("undecided", f"{verdict.case}, {verdict.dtype}  {verdict.quantity}: {verdict.reason}")
    if comparison.first_difference is not None:
        add("first", comparison.first_difference.sentence)
    for name in comparison.looks_like[:3]:
        add("looks like", name)
    for note in comparison.notes[: max(1, 26 - len(lines))]:
        add("note", note)
    add(*summary(comparison))
    return "\n".join(lines[:29] + lines[-1:] if len(lines) > 30 else lines)


def as_markdown(comparison: Result) -> str:
    """The comparison for the page of a CI job: the outcome, and the text of a terminal."""
    outcome, _ = summary(comparison)
    # Indented, it is code, whatever a name in it contains.
    title = f"## {SIGNS.get(outcome, OTHER_SIGN)} attention-parity: {outcome}"
    return f"{title}\n\n{textwrap.indent(as_text(comparison), ' ' * 4)}\n"


def red_lines(comparison: Result) -> Iterator[tuple[str, str]]:
    """Yield a status and a sentence for each output that is red, and one line for the gradients that follow from it."""
    outputs = [verdict for verdict in comparison.red if not verdict.quantity.startswith("gradient.")]
    gradients = [verdict for verdict in comparison.red if verdict.quantity.startswith("gradient.")]
    first = outputs or gradients
    for verdict in first[:MOST_RED]:
        yield verdict.status, f"{verdict.case}, {verdict.dtype}  {verdict.reason}"
    if len(first) > MOST_RED:
        yield "", f"and {len(first) - MOST_RED} more {'outputs' if outputs else 'gradients'}"
    if outputs and gradients:
        yield gradients[0].status, f"gradients of wrong outputs: {len(gradients)}"


def summary(comparison: Result) -> tuple[str, str]:
    """The outcome: a word, and what was compared."""
    counts = Counter(verdict.quantity.partition(".")[0] for verdict in comparison.verdicts)
    words = {kind: KINDS.get(kind, ("other", "others")) for kind in counts}
    total = ", ".join(f"{count} {words[kind][count > 1]}" for kind, count in counts.items())
    judged = f"{comparison.actual} against {comparison.expected}: {total}; {comparison.decided_in} decided"
    if comparison.red or not comparison.verdicts:
        return "red", f"{len(comparison.red)} of {len(comparison.verdicts)} comparisons, {judged}"
    if comparison.undecided_verdicts:
        return "undecided", f"{len(comparison.undecided_verdicts)} of {len(comparison.verdicts)} comparisons, {judged}"
    return "green", f"{len(comparison.verdicts)} comparisons, {judged}"
