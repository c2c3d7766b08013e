"""The report: a table of the largest error of each operator and backend, and all red verdicts."""

from __future__ import annotations

import math
import os
import shlex
import textwrap
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from attention_core.operators import FILE_OF, find
from attention_core.specification import Layer
from parity_tests.format.call import SECOND, TRAINING
from parity_tests.format.selection import Cell
from parity_tests.judge.cause import cause_of_zero
from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Verdict
from parity_tests.workers.answers import is_gradient
from parity_tests.workers.environment import PATH
from parity_tests.workers.recordings import backend_of
from parity_tests.workers.target import NOT_TAKEN

if TYPE_CHECKING:  # fuzzing needs hypothesis
    from parity_tests.fuzz.campaign import Campaign, Finding

MOST_RED = 20
"""The largest number of failing quantities that are printed."""
MOST_SHOWN = 3
"""The number of cases that are printed of each."""
MOST_ROWS = 12
"""With more operators than this, the table has a row for each file, and one for each red operator."""


def report(run: Run, console: Console, every: bool = False) -> None:
    """Print the table, red and missing verdicts, times, and the outcome in one line."""
    for dtype in run.dtypes:
        console.print(table(run, dtype, every))
    for line in not_applicable(run.verdicts):
        console.print(line)
    if parts := missing_parts(run.verdicts, every):
        line = textwrap.fill(f"missing     {'; '.join(parts)}", min(100, console.width), subsequent_indent=" " * 12)
        console.print(Text(line, style="dim"))
    if run.drawn and run.seed is not None:
        line = f"drawn       {len(run.drawn)} of the cases, by seed {run.seed}; --seed S draws others"
        console.print(Text(line, style="dim"))
    for line in red_lines(run, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)  # a command has to stay in one line
    for name, reason in run.missing.items():
        console.print(f"[yellow]not judged[/]  {name}: {escape(reason)}")
    console.print(Text(f"time        {times(run)}", style="dim"))
    console.print(summary(run), soft_wrap=True)


def table(run: Run, dtype: str, every: bool = False) -> RenderableType:
    """A row for each operator and a column for each backend: the largest error in eps, or the failure.

    If there are many operators, those of a file share a row, and only red ones have a separate row, unless every row is
    requested. The column "pairs" has the largest error between any two backends.
    """
    alone = any(verdict.against == "reference" for verdict in run.verdicts) or len(run.recordings) < 2
    backends = list(run.recordings) if alone else []
    cases = {cell.case.id: cell.case.operator for cell in run.cells if cell.dtype == dtype}
    here: dict[str, list[Verdict]] = {name: [] for name in cases.values()}
    for verdict in run.verdicts:
        if verdict.dtype in (dtype, "*") and verdict.operator in here:
            here[verdict.operator].append(verdict)
    red = {name for name, verdicts in here.items() if any(verdict.red for verdict in verdicts)}
    listed = list(rows(list(here), red, every))
    grid = Table(header_style="bold")
    grid.add_column("operator", min_width=max((len(label) for label, _ in listed), default=0))
    grid.add_column("cases", justify="right")
    for name in backends:
        grid.add_column(name, justify="right", min_width=6)
    if len(run.recordings) > 1:
        grid.add_column("pairs" if alone else " against ".join(run.recordings), justify="right", min_width=6)
    for label, operators in listed:
        verdicts = [verdict for name in operators for verdict in here[name]]
        single = [verdict for verdict in verdicts if verdict.against == "reference"]
        row = [label, str(sum(name in operators for name in cases.values()))]
        row += [_cell([verdict for verdict in single if verdict.name == name]) for name in backends]
        if len(run.recordings) > 1:
            row.append(_cell([verdict for verdict in verdicts if verdict.against != "reference"]))
        grid.add_row(*row)
    return with_title(f"{dtype}: worst error, in eps of the largest entry", grid)


def with_title(title: str, grid: Table) -> Group:
    """Print a title, which may be longer than the table is wide, and the table."""
    return Group(Text(title, style="italic"), grid)


def rows(operators: Sequence[str], red: Collection[str], every: bool) -> Iterable[tuple[str, Sequence[str]]]:
    """The rows of a table: a label and the operators that the row combines."""
    if every or len(operators) <= MOST_ROWS:
        yield from ((name, [name]) for name in operators)
        return
    files: dict[str, list[str]] = {}
    for name in operators:
        files.setdefault(TRAINING if name == TRAINING else FILE_OF[name], []).append(name)
    for file, names in files.items():
        yield f"{file} ({len(names)})" if len(names) > 1 else file, names
        yield from ((f"  {name}", [name]) for name in names if name in red)


def _cell(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "[bold red]blank[/]"
    red = [verdict for verdict in verdicts if verdict.red]
    if red:
        kinds = dict.fromkeys(verdict.status for verdict in red)
        return f"[bold red]{' '.join(kinds)} {len(red)}[/]"
    if all(verdict.status == "not-applicable" for verdict in verdicts):
        return "[dim]n/a[/]"
    if not any(verdict.is_judged for verdict in verdicts):
        return "[yellow]missing[/]"
    known = sum(verdict.status == "known-divergence" for verdict in verdicts)
    others = [verdict for verdict in verdicts if verdict.status == "informational"]
    text = f"[green]{_worst([verdict for verdict in verdicts if verdict.status != 'informational'])}[/]"
    text += f" [dim]({_worst(others)} informational)[/]" if others else ""
    return text + (f" [yellow]({known} known)[/]" if known else "")


def _worst(verdicts: Sequence[Verdict]) -> str:
    worst = max((verdict.error for verdict in verdicts if verdict.error is not None), default=math.nan)
    return "exact" if worst == 0.0 else f"{worst:.2g}" if worst < 100 else f"{worst:.0f}"


def not_applicable(verdicts: Sequence[Verdict]) -> Iterable[RenderableType]:
    """Count the cells that are not applicable, for each backend, dtype and reason."""
    counts = Counter((v.name, v.dtype, v.reason) for v in verdicts if v.status == "not-applicable")
    for (name, dtype, reason), count in counts.items():
        yield Text(f"n/a         {name}  {dtype}  {count} {'case' if count == 1 else 'cases'}: {reason}", style="dim")


def missing(verdicts: Sequence[Verdict]) -> list[str]:
    """List the functions that a target does not implement, in whole or in part, if not all are required."""
    missing = [verdict for verdict in verdicts if verdict.status == "not-implemented"]
    absent = dict.fromkeys(verdict.reason.removeprefix(ABSENT) for verdict in missing if _is_absent(verdict))
    differentiated = {v.operator for v in verdicts if v.status != "not-implemented" and is_gradient(v.quantity)}

    def function_of(verdict: Verdict) -> str:
        if verdict.quantity == "*":
            return verdict.reason
        whole = is_gradient(verdict.quantity) and verdict.operator not in differentiated
        return f"{verdict.operator} gives no {'gradients' if whole else verdict.quantity}"

    counts = Counter(function_of(verdict) for verdict in missing if not _is_absent(verdict))
    lines = [f"{what} ({count})" for what, count in counts.items()]
    return lines + ([f"{len(absent)} functions: {', '.join(absent)}"] if absent else [])


ABSENT = "there is no "
"""The prefix of the reason if a function is missing."""


def _is_absent(verdict: Verdict) -> bool:
    return verdict.reason.startswith(ABSENT)


def missing_parts(verdicts: Sequence[Verdict], every: bool = False) -> list[str]:
    """List the arguments, gradients, outputs and functions that a target may lack, and does.

    Functions are counted, and named under every.
    """
    listed: dict[str, dict[str, None]] = defaultdict(dict)  # by words with a place for them
    missing = [verdict for verdict in verdicts if verdict.status == "not-implemented"]
    differentiated = {v.operator for v in verdicts if v.status != "not-implemented" and is_gradient(v.quantity)}
    refused = {(v.operator, f"gradient_{v.reason.partition(NOT_TAKEN)[2]}") for v in missing}
    for verdict in missing:
        function, not_taken, argument = verdict.reason.partition(NOT_TAKEN)
        if not_taken:
            kind = "" if _is_required(verdict.operator, argument) else "optional "
            listed[f"{kind}{{}} of {function}"][argument] = None
        elif verdict.quantity != "*" and (verdict.operator, verdict.quantity) not in refused:
            whole = is_gradient(verdict.quantity) and verdict.operator not in differentiated
            listed[f"{'gradients' if whole else verdict.quantity} of {{}}"][verdict.operator] = None
        elif verdict.quantity == "*" and not _is_absent(verdict):
            listed["{}"][verdict.reason] = None
    absent = dict.fromkeys(verdict.reason.removeprefix(ABSENT) for verdict in missing if _is_absent(verdict))
    if absent:
        count = f"{len(absent)} {'function' if len(absent) == 1 else 'functions'}"
        listed[f"{count}: {{}}" if every else f"{count} (--every lists them)"] = absent
    return [words.format(", ".join(names)) for words, names in listed.items()]


def _is_required(operator: str, argument: str) -> bool:
    """Whether an argument of a function, or of a layer's constructor, has no default."""
    entry = find(operator)
    methods = entry.methods if isinstance(entry, Layer) else ()
    options = [*entry.options, *(option for method in methods for option in method.options)]
    return any(option.name == argument and option.default is None for option in options)


@dataclass(frozen=True)
class RedGroup:
    """The red verdicts of a pair with one quantity: their number in words, and the command that repeats the first."""

    verdicts: Sequence[Verdict]
    quantity: str
    counts: str
    command: str

    @property
    def title(self) -> str:
        """The names of what was compared, the operator, the quantity and the number of cases."""
        first = self.verdicts[0]
        pair = first.name if first.against == "reference" else f"{first.name} against {first.against}"
        what = first.operator if self.quantity == "*" else f"{first.operator}  {self.quantity}"
        return f"{pair}  {what}: {self.counts}"

    @property
    def first(self) -> list[Verdict]:
        """The first verdicts with different reasons; none if they follow from others."""
        if self.quantity == FOLLOWING:
            return []
        first: dict[str, Verdict] = {}
        for verdict in self.verdicts:
            first.setdefault(verdict.reason, verdict)
        return list(first.values())[:MOST_SHOWN]


FOLLOWING = "gradients of wrong outputs"
"""The quantity of all gradients in cells with a wrong output, from which they follow: they are one group."""


def red_groups(run: Run) -> list[RedGroup]:
    """The red verdicts by backend, operator, quantity and status, in order."""
    wrong = {
        _place(verdict) for verdict in run.verdicts if verdict.status == "fail" and not is_gradient(verdict.quantity)
    }
    groups: dict[tuple[str, ...], list[Verdict]] = defaultdict(list)
    compared: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for verdict in run.verdicts:
        follows = is_gradient(verdict.quantity) and _place(verdict) in wrong
        quantity = FOLLOWING if follows else verdict.quantity.replace(SECOND, "")
        place = verdict.name, verdict.against, verdict.operator
        if verdict.red:
            groups[*place, quantity, verdict.status].append(verdict)
        if verdict.is_judged:
            compared[*place, quantity, verdict.dtype].add(verdict.case)
            compared[*place, "*", verdict.dtype].add(verdict.case)
    result = []
    for (*whose, quantity, _), red in groups.items():
        counts = []
        for dtype in dict.fromkeys(verdict.dtype for verdict in red):
            count, of = len({v.case for v in red if v.dtype == dtype}), compared[*whose, quantity, dtype]
            kind = f"{dtype} {'case' if len(of) == 1 else 'cases'}"
            counts.append(f"{count} of {len(of)} {kind}" if dtype != "*" else "all cases")
        result.append(RedGroup(red, quantity, ", ".join(counts), repeat(run, red[0])))
    return result


def _place(verdict: Verdict) -> tuple[str, ...]:
    return verdict.name, verdict.against, verdict.case, verdict.dtype


def red_lines(run: Run, width: int | None) -> Iterable[RenderableType]:
    """The red verdicts by operator and quantity: their number, the first few, and the first one's command.

    The first few are wrapped to the width of a terminal; without a width, each stays in one line.
    """
    groups, cells = red_groups(run), {cell.key: cell for cell in run.cells}
    for group in groups[:MOST_RED]:
        yield Text.assemble(
            (f"{group.verdicts[0].status:<11} ", "bold red"),
            (group.title, "bold"),
            *(f"\n{_case_line(verdict, cells, width)}" for verdict in group.first),
            ("" if group.quantity == FOLLOWING else f"\n            {group.command}", "cyan"),
        )
    if len(groups) > MOST_RED:
        yield Text(f"            ... and {len(groups) - MOST_RED} more quantities; --json FILE has all of them")


def _case_line(verdict: Verdict, cells: Mapping[str, Cell], width: int | None) -> str:
    """The case of a verdict, without its operator, its dtype, and what is wrong."""
    text = f"{verdict.case.removeprefix(f'{verdict.operator}-')}  {verdict.dtype}  {verdict.reason}"
    cell = cells.get(f"{verdict.case}/{verdict.dtype}") if verdict.check == "zero" else None
    if cell is not None and (cause := cause_of_zero(cell, verdict.quantity)):
        text += f", because of {cause}"
    if width is None:
        return f"{' ' * 12}{text}"
    return textwrap.fill(text, width, initial_indent=" " * 12, subsequent_indent=" " * 14, break_long_words=False)


def reproduce(verdict: Verdict, command: str = "", drawn: Mapping[str, str] = MappingProxyType({})) -> str:
    """The command that repeats one verdict: `run` with its backends, or another command.

    drawn has the lines of drawn cases, by id: a line repeats its case in any version.
    """
    names = [name for name in (verdict.backend, verdict.against) if name != "reference"]
    backends = dict.fromkeys(map(backend_of, names))
    parts = [command or f"attention-parity run --backend {','.join(backends)}"]
    if verdict.case in drawn:
        parts.append(f"--drawn {shlex.quote(drawn[verdict.case])}")
    elif verdict.case != "*":
        parts.append(f"--case '{verdict.case}'")
    if verdict.operator == TRAINING:
        parts.append("--training")
    if verdict.dtype != "*" and verdict.case not in drawn:
        parts.append(f"--dtype {verdict.dtype}")
    if verdict.device not in ("", "cpu"):
        parts.append(f"--device {verdict.device}")
    if PATH in os.environ:
        parts.append(f"--path {os.environ[PATH]}")
    return " ".join(parts)


def repeat(run: Run, verdict: Verdict) -> str:
    """The command that repeats a verdict of a run, with all others if it cannot select cells."""
    return reproduce(verdict, run.command, run.drawn) if run.selects_cells else run.command


def times(run: Run) -> str:
    """The times in seconds; backends run concurrently, so the parts sum to more than the total."""
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in run.seconds.items()) + " s"


def summary(run: Run) -> Text:
    """The outcome in one line."""
    names, total = ", ".join(run.recordings), f"{sum(verdict.is_judged for verdict in run.verdicts):,}"
    if run.interrupted:
        answered = sum(len(recording.answers) for recording in run.recordings.values())
        cells = f"{answered:,} of {len(run.cells) * len(run.recordings):,} cells answered"
        return Text(f"interrupted: {cells}; {len(run.red)} of {total} comparisons red", style="bold yellow")
    if run.red:
        return Text(f"red         {len(run.red)} of {total} comparisons of {names}", style="bold red")
    counts = Counter(verdict.status for verdict in run.verdicts)
    missing, absent, known = (counts[name] for name in ("not-implemented", "not-applicable", "known-divergence"))
    if not run.is_judged:
        return Text(
            f"red         nothing was judged: {names} implements none of the selected operators", style="bold red"
        )
    tail = f", {known} known divergences" if known else ""
    tail += f"; {missing:,} more are missing" if missing else ""
    refused = Counter(one.reason.partition(NOT_TAKEN)[2] for one in run.verdicts if NOT_TAKEN in one.reason)
    untaken = ", ".join(f"{argument} ({count:,})" for argument, count in refused.most_common())
    tail += f", of which {refused.total():,} need arguments not taken: {untaken}" if refused else ""
    reasons = dict.fromkeys(verdict.reason for verdict in run.verdicts if verdict.status == "not-applicable")
    tail += f"; {absent:,} not applicable: {'; '.join(reasons)}" if absent else ""
    tail += f"; {counts['informational']:,} of them informational" if counts["informational"] else ""
    core = f"the core, {len(run.cells):,} of {run.of:,} cells"
    tail += f"; {core}: attention-parity run --all runs the rest" if len(run.cells) < run.of else ""
    return Text(f"green       {total} comparisons of {names}: all within tolerance{tail}", style="bold green")


# ------------------------------------------------------------------------------------------------ fuzzing


def report_finding(finding: Finding, again: str, console: Console) -> None:
    """Print a failure, its minimised case, the command that repeats it, and the known mistake that it matches."""
    verdict = finding.verdict
    for line in (
        f"[red]{verdict.name} {verdict.operator} {verdict.quantity}: {verdict.status}[/] {escape(verdict.reason)}",
        f"    {escape(repr(finding.drawn))},",
        f"    [dim]{escape(again)}[/]",
        *([] if finding.explanation is None else [f"    looks like: {escape(finding.explanation.sentence)}"]),
    ):
        console.print(line, highlight=False, soft_wrap=True)


def report_campaign(campaign: Campaign, console: Console) -> None:
    """Print the number of cases of each operator with their largest errors, and the skipped cases with reasons."""
    backends = campaign.names
    grid = Table(header_style="bold", caption="cases, and the largest error as a share of its tolerance")
    grid.add_column("operator")
    for name in backends:
        grid.add_column(name, justify="right")
    for operator in campaign.operators:
        cells = [(campaign.cases[name, operator], campaign.worst.get((name, operator), 0.0)) for name in backends]
        grid.add_row(operator, *(f"{count} [dim]{100 * share:.0f}%[/]" for count, share in cells))
    grid.add_row("all", *(str(sum(n for (b, _), n in campaign.cases.items() if b == name)) for name in backends))
    console.print(grid)
    total = sum(campaign.cases.values())
    steps = f" in steps of {campaign.step}" if campaign.step > 1 else ""
    console.print(
        f"{total} cases judged: seed {campaign.seed}, numbers {campaign.first} to {campaign.last}{steps}, of which "
        f"{campaign.left_out} skipped, since rounding alone could change them; largest share of a tolerance "
        f"{100 * max(campaign.worst.values(), default=0.0):.0f} %; {campaign.seconds:.0f} s, "
        f"{total / max(campaign.seconds, 1e-9):.1f} cases/s",
        highlight=False,
        soft_wrap=True,
    )
    for reason, count in campaign.missing.most_common():
        console.print(Text(f"left out    {count} cases: {reason}", style="dim"), soft_wrap=True)
    for kind, finding in campaign.findings.items():
        console.print(
            f"[red]{' '.join(filter(None, kind))}[/]: {campaign.repeated[kind]} cases, first {finding.number}"
        )
