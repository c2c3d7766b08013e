"""A run for the summary page of a CI job, as Markdown, and as a badge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from html import escape

from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Explanation, Verdict
from parity_tests.reports import matrix
from parity_tests.reports.matrix import Place
from parity_tests.reports.table import MOST_RED, red_groups, rows, summary, times
from parity_tests.workers.recordings import own_version


def markdown(run: Run) -> str:
    """The outcome, what is red with the commands that repeat it, and the matrix by files of operators."""
    return "\n".join([*_outcome(run), *_red_lines(run), *_matrix(run), *_environment(run)]) + "\n"


def _outcome(run: Run) -> Iterator[str]:
    outcome, _, words = summary(run).plain.partition(" ")
    outcome = outcome.rstrip(":")
    yield from (f"## {SIGNS.get(outcome, OTHER_SIGN)} attention-parity: {outcome}", "", _safe(words.strip()), "")


SIGNS = {"green": "✅", "red": "❌"}
OTHER_SIGN = "⚠️"


def _red_lines(run: Run) -> Iterator[str]:
    for known in together(run.explanations):
        yield "- **Looks like** " + _safe(f"{known.name} {known.operator}: {known.sentence}")
    groups = red_groups(run)
    for group in groups[:MOST_RED]:
        yield f"- **{group.verdicts[0].status}** {_safe(group.title)}"
        yield from (f"  - {verdict.case}, {verdict.dtype}: {_safe(verdict.reason)}" for verdict in group.first)
        yield f"  - `{group.command.replace('`', chr(39))}`"
    if len(groups) > MOST_RED:
        yield f"- ... and {len(groups) - MOST_RED} more quantities"
    if groups or run.explanations:
        yield ""


def together(explanations: Iterable[Explanation]) -> list[Explanation]:
    """One explanation for all operators of a backend with the same mistake."""
    alike: dict[tuple[str, str], Explanation] = {}
    for one in explanations:
        before = alike.get((one.name, one.mutant))
        if before is not None:
            operators = f"{before.operator}, {one.operator}"
            same, red, right = before.same + one.same, before.red + one.red, before.right + one.right
            one = replace(one, operator=operators, same=same, red=red, right=right)
        alike[one.name, one.mutant] = one
    return list(alike.values())


def _matrix(run: Run) -> Iterator[str]:
    """A row for each file of operators, and for each red operator."""
    columns, places = matrix.columns(run), matrix.by_place(run)
    red = {verdict.operator for verdict in run.red}
    yield from ("Largest error as a share of its tolerance:", "")
    yield f"| operator | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    listed = [name for name in matrix.operators(run) if name != matrix.WHOLE]
    for label, names in rows(listed, red, every=False):
        entries = [_entry([v for name in names for v in places.get(Place(name, column), [])]) for column in columns]
        yield f"| {label.replace('  ', '&nbsp;&nbsp;')} | {' | '.join(entries)} |"
    yield ""


def _entry(verdicts: list[Verdict]) -> str:
    style, text = matrix.entry(verdicts, required=False)
    return f"**{text}**" if style == "red" else text


def _environment(run: Run) -> Iterator[str]:
    yield from ("<details><summary>Versions and times</summary>", "")
    yield f"- attention-parity {own_version()}"
    for name, recording in run.recordings.items():
        versions = recording.about.get("versions", {})
        yield f"- {name}: {_safe(', '.join(f'{package} {version}' for package, version in versions.items()))}"
    yield from (f"- not judged: {name}, {_safe(reason)}" for name, reason in run.missing.items())
    yield from (f"- seconds: {times(run)}", "", "</details>")


def _safe(text: str) -> str:
    """A text in one line, without the characters that Markdown and HTML interpret."""
    return escape(" ".join(text.split()), quote=False).translate({ord(letter): f"\\{letter}" for letter in "`*_|[]"})


# ------------------------------------------------------------------------------------------------ badge

COLOURS = {"green": "#1a7f37", "red": "#b3400a"}
LETTER = 6.7
"""The approximate width of a letter of 11 pixels."""


def badge(run: Run) -> str:
    """A badge in SVG: the number of comparisons within tolerance, or of those that are red."""
    outcome = summary(run).plain.partition(" ")[0].rstrip(":")
    judged = sum(verdict.is_judged for verdict in run.verdicts)
    texts = {"green": f"✓ {judged:,} comparisons", "red": f"✕ {len(run.red):,} of {judged:,} red"}
    label, text = "attention parity", texts.get(outcome, outcome)
    left, right = (round(LETTER * len(words)) + 14 for words in (label, text))
    colour = COLOURS.get(outcome, "#6e7781")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{label}: {text}"><title>{label}: {text}</title>'
        f'<clipPath id="round"><rect width="{left + right}" height="20" rx="3"/></clipPath><g clip-path="url(#round)">'
        f'<rect width="{left}" height="20" fill="#444c56"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2}" y="14" textLength="{left - 14}">{label}</text>'
        f'<text x="{left + right / 2}" y="14" textLength="{right - 14}">{text}</text></g></svg>\n'
    )
