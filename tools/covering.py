"""Add rows until every setting of `tools.design` and every condition is met: `python -m tools.covering`.

The rows are kept in `conditions.txt`; those that are there stay, since their indices are names. A row is drawn as the
fuzzer draws one, and changed to meet one condition after the other, as many as it can meet at once. `--table` prints
which values of every dimension each operator meets.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np

from attention_core.errors import AttentionError
from parity_tests.cases import covering
from parity_tests.cases.conditions import FURTHER, UNVARIED, WITH_GRADIENTS, Condition, conditions
from parity_tests.cases.covering import (
    DIMENSIONS,
    FULL_ALONE,
    MORE,
    MOST_WORK,
    Call,
    is_forward,
    name_of,
    named_rows,
    work,
)
from parity_tests.cases.draw import Picks, Setting, draw_call, draw_numbers
from parity_tests.cases.suite import all_cases
from parity_tests.format import expected as reference
from parity_tests.format.case import DTYPES, FULL, Case
from parity_tests.format.drawn import NAMES, Drawn
from parity_tests.judge.condition import judgeable
from parity_tests.judge.question import Question
from tools.design import required_settings, settings

CANDIDATES = 8
"""The number of rows to choose from."""
ATTEMPTS = 1000
"""The number of draws after which a condition is given up."""
PACKED = 96
"""The number of further conditions that a row is changed for."""
DRAWS, TURNS = 400, 100
"""The number of rows to choose from for settings, and the most rows of a call for them."""
SEEDS = range(101, 113)


def rows_for_settings(alike: Sequence[Call], met: set[Setting], count: Counter[str]) -> Iterator[Drawn]:
    """Rows of calls of the same kin that have the settings that none of them has; count is that of their rows."""
    picks, missing = Picks(f"covering/{alike[0].kin}"), set().union(*map(required_settings, alike)) - met
    for call in itertools.chain.from_iterable(itertools.repeat(alike, TURNS)):
        dtypes = FULL if call.entry.name in FULL_ALONE else DTYPES
        plain = [replace(draw_call(call, picks.one, dtypes), forward=True) for _ in range(DRAWS if missing else 0)]
        # Without gradients, numbers may be of any magnitude.
        drawn = [draw_numbers(row, picks.one) for row in plain if all(row.sizes.values())]
        gains = [(len(missing & {setting for _, setting in settings(call, row)}), row) for row in drawn]
        for gain, row in sorted(gains, key=itemgetter(0), reverse=True)[:CANDIDATES]:
            judged = steady(call, row, [], count[call.name]) if gain and accept(call, row, []) else None
            if judged is not None:
                missing -= {setting for _, setting in settings(call, judged)}
                count[call.name] += 1
                yield judged
                break
    if missing:
        print(f"{alike[0].kin}: no row has {missing}", file=sys.stderr)


def added_rows(call: Call, cases: list[Case], index: int) -> Iterator[Drawn]:
    """Rows that meet the conditions of a call that none of the cases meets, dimension by dimension."""
    for dimension in FURTHER:
        picks = Picks(f"conditions/{call.name}/{dimension}")
        missing = [one for one in conditions(call) if one.dimension == dimension and not any(map(one.holds, cases))]
        while missing:
            row = first_row(call, missing[0], missing[1:], picks, index)
            if row is None:
                print(f"{call.name}: no row meets {missing.pop(0).name}", file=sys.stderr)
                continue
            case = Case(**{**row.as_case(), "name": name_of(row, index)})
            missing = [one for one in missing if not one.holds(case)]
            cases.append(case)
            index += 1
            yield row


def first_row(call: Call, first: Condition, others: Sequence[Condition], picks: Picks, index: int) -> Drawn | None:
    """A row that meets a condition and many others; None if none is found."""
    best: tuple[list[Condition], Drawn] | None = None
    for attempt in range(ATTEMPTS):
        if best is not None and (attempt > CANDIDATES or not others):
            break
        row = first.aim(simple(call, picks), picks.one)
        if accept(call, row, [first]) is None:
            continue
        held = [first]
        for further in shuffle(others, picks)[:PACKED]:
            changed = further.aim(row, picks.one)
            if accept(call, changed, [*held, further]) is not None:
                row, held = changed, [*held, further]
        if best is None or len(held) > len(best[0]):
            judged = steady(call, row, held, index)
            best = best if judged is None else (held, judged)
    return best and best[1]


def shuffle(found: Sequence[Condition], picks: Picks) -> list[Condition]:
    """The conditions in a drawn order."""
    return sorted(found, key=lambda one: picks.random.random())


def simple(call: Call, picks: Picks) -> Drawn:
    """Draw a row without an empty axis, a second call or large sizes, and half of the time without needless options."""
    row = draw_call(call, picks.one, FULL)
    needed = {option.name for option in (*call.entry.options, *call.function.options) if option.default is None}
    options = row.options if picks.one((False, True)) else {name: row.options[name] for name in needed & {*row.options}}
    sizes = {axis: min(size, 6) for axis, size in row.sizes.items() if size}
    return replace(row, sizes=sizes, options=options, twice=False, shared=())


def accept(call: Call, row: Drawn, held: Sequence[Condition]) -> Case | None:
    """The row as a case; None if it is refused, costs too much, or does not meet one of the conditions."""
    large = not held or held[0].dimension in ("all sizes", "integers")
    most = 4 * MOST_WORK[0] if large else 8 * MOST_WORK[1]
    if work(call, row.sizes) > most:
        return None
    try:
        case = Case(**row.as_case())
        with np.errstate(all="ignore"):
            reference.computed_outputs(case, case.inputs, case.parameters)
            return case if all(one.holds(case) for one in held) else None
    except (AttentionError, ValueError):
        return None


def steady(call: Call, row: Drawn, held: Sequence[Condition], index: int) -> Drawn | None:
    """The row with a seed at which it can be judged and still meets the conditions."""
    dimension = held[0].dimension if held else ""
    costly = (held and dimension not in WITH_GRADIENTS) or is_forward(call, replace(row, seed=index))
    for forward in sorted({bool(costly), dimension != "views"}):
        for seed in SEEDS:
            candidate = replace(row, seed=seed, forward=forward)
            judged = judgeable(candidate, name=name_of(candidate, index))
            if judged is None or not all(one.holds(judged.case) for one in held):
                continue
            if Question(judged.cell).is_certain:
                return candidate
    return None


def cases_by_call() -> dict[str, list[Case]]:
    """The cases in full precision, by the name of their call."""
    found: dict[str, list[Case]] = defaultdict(list)
    for case in all_cases():
        if not case.again and {*case.dtypes} & {*FULL}:
            found[f"{case.operator}.{case.method}"].append(case)
    return found


def values_met() -> dict[str, dict[str, list[str]]]:
    """For each operator and dimension, the values that some case has."""
    cases, met = cases_by_call(), {name: {one: dict[str, None]() for one in (*DIMENSIONS, *FURTHER)} for name in NAMES}
    for call in covering.calls():
        for case in cases[call.name]:
            for dimension, (name, value) in settings(call, case.drawn) if case.drawn else ():
                if value not in ("", (), False):
                    met[call.entry.name][dimension][f"{name} {value}"] = None
        for one in conditions(call):
            if any(map(one.holds, cases[call.name])):
                met[call.entry.name][one.dimension][one.name] = None
    return {name: {one: sorted(values) for one, values in row.items()} for name, row in met.items()}


def main(arguments: Sequence[str]) -> None:
    """Print the values of every dimension that are met, or add the rows of all calls, or of some operators."""
    if [*arguments] == ["--table"]:
        for operator, row in values_met().items():
            for dimension, values in row.items():
                print(f"{operator} | {dimension} | {', '.join(values) or UNVARIED[dimension][0]}")
        return
    chosen = [call for call in covering.calls() if not arguments or call.entry.name in arguments]
    cases, kin, rows = cases_by_call(), defaultdict[str, list[Call]](list), list[Drawn]()
    for call in covering.calls():
        kin[call.kin].append(call)
    count = Counter(f"{name}.{row.method}" for name in NAMES for _, row in named_rows(name))
    for alike in kin.values():
        met = {one for call in alike for row in rows_of(call) for _, one in settings(call, row)}
        if any(call in chosen for call in alike):
            rows += rows_for_settings(alike, met, count)
    for call in chosen:
        rows += added_rows(call, cases[call.name], count[call.name])
    with MORE.open("a", encoding="utf-8") as file:
        file.writelines(f"{row!r}\n" for row in rows)


def rows_of(call: Call) -> list[Drawn]:
    """The rows of a call."""
    return [row for _, row in named_rows(call.entry.name) if row.method == call.method]


if __name__ == "__main__":
    main(sys.argv[1:])
