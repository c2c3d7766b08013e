"""The core: few cells that tell every known and every derived mistake from a right answer.

`attention-parity run` judges these unless it is asked for all. They are chosen greedily, each the one that tells the
most mistakes that none before it does, and kept in `cases/core.txt`; `python -m parity_tests.mutants.core` writes them.
Mistakes that show in trainings alone are left to those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from parity_tests.cases.case import DTYPES, FULL
from parity_tests.cases.selection import CORE, Cell, cells_of
from parity_tests.cases.suite import all_cases
from parity_tests.judge.compare import judge
from parity_tests.judge.question import Question
from parity_tests.mutants.derived import derived, tellers
from parity_tests.mutants.families import MUTANTS
from parity_tests.mutants.mutant import attempt
from parity_tests.workers.recordings import Recording


def told(cells: Sequence[Cell], attempts: Mapping[str, tuple[Sequence[Cell], Recording]]) -> dict[str, frozenset[str]]:
    """For each mistake the names of the cells that tell it from a right answer, of full precision if one of those does.

    attempts is what each known mistake answers, by name.
    """
    names = {cell.key for cell in cells}
    full = {cell.key for cell in cells if cell.dtype in FULL}
    found: dict[str, set[str]] = {}
    for name, (own, recording) in attempts.items():
        red = {cell.key for cell in own if any(verdict.red for verdict in judge(Question(cell), recording))}
        found[name] = red & names
    found |= {f"{one.scope}: {one.name}": own for one, own in tellers(cells, derived()).items()}
    return {name: frozenset(own & full or own) for name, own in found.items()}


def chosen(mistakes: Collection[frozenset[str]], sizes: Mapping[str, int], before: Mapping[str, str]) -> set[str]:
    """Cells that tell each mistake: first those that tell most, and of these the smallest; none could be left out.

    before names, for a cell that is asked again, the one that it repeats, which then has to be there.
    """
    kept: list[str] = []
    left = list(filter(None, mistakes))
    while left:
        count = Counter(name for own in left for name in own)
        kept.append(max(count, key=lambda name: (count[name], -sizes[name], name)))
        left = [own for own in left if kept[-1] not in own]
    kept = list(dict.fromkeys([*kept, *(before[name] for name in kept if name in before)]))
    for name in sorted(kept, key=lambda name: (-sizes[name], name)):
        repeated = name in {before.get(own) for own in kept}
        if not repeated and all(own.intersection(kept) != {name} for own in mistakes):
            kept.remove(name)
    return {*kept}


def computed() -> list[str]:
    """The names of the cells of the core, in the order of the cases."""
    cells = cells_of(all_cases(), DTYPES)
    sizes = {Cell(case, dtype).key: sum(array.size for array in case.inputs.values()) for case, dtype in cells}
    before = {Cell(case, dtype).key: f"{case.again}/{dtype}" for case, dtype in cells if case.again}
    mistakes = told(cells, {mutant.name: attempt(mutant) for mutant in MUTANTS})
    kept = chosen(mistakes.values(), sizes, before)
    return [cell.key for cell in cells if cell.key in kept]


if __name__ == "__main__":
    CORE.write_text("".join(f"{name}\n" for name in computed()), encoding="utf-8")
