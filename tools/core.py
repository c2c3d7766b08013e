"""Write the core: few cells that kill every mutant, the known ones and the derived ones: `python -m tools.core`.

`attention-parity run` computes these unless all are requested. They are kept in `parity_tests/cases/core.txt`: those of
today, where they are needed, and others that are chosen greedily, each the one that kills most mutants of those left.
Mutants that show in trainings alone are left to the trainings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from parity_tests.cases.suite import CORE, all_cases
from parity_tests.format.case import DTYPES, FULL
from parity_tests.format.selection import Cell, cells_of
from parity_tests.mutants.derived import Derived, derived_mutants, killers
from parity_tests.mutants.families import MUTANTS
from parity_tests.mutants.outcome import attempt, outcome_of


def killers_among(
    cells: Sequence[Cell], known: Mapping[str, Set[str]], from_specification: Mapping[Derived, Set[str]]
) -> dict[str, frozenset[str]]:
    """For each mutant the names of those of the cells that kill it, of full precision if one of these does.

    known holds the names of all cells that kill a mutant, by its name, from_specification those of derived ones.
    """
    names = {cell.key for cell in cells}
    full = {cell.key for cell in cells if cell.dtype in FULL}
    killers = {**known, **{f"{mutant.scope}: {mutant.name}": red for mutant, red in from_specification.items()}}
    return {name: frozenset(red & full or red & names) for name, red in killers.items()}


def smallest_cover(
    mutants: Collection[frozenset[str]], sizes: Mapping[str, int], before: Mapping[str, str], present: Iterable[str]
) -> set[str]:
    """Cells that kill each mutant: the present ones, then those that kill most, and of these the smallest.

    None could be left out. before names the cell that another one repeats, by the name of the latter; both then have to
    be there.
    """
    kept = [name for name in present if name in sizes]
    left = [killers for killers in mutants if killers and not killers.intersection(kept)]
    while left:
        count = Counter(name for killers in left for name in killers)
        kept.append(max(count, key=lambda name: (count[name], -sizes[name], name)))
        left = [killers for killers in left if kept[-1] not in killers]
    kept = list(dict.fromkeys([*kept, *(before[name] for name in kept if name in before)]))
    for name in sorted(kept, key=lambda name: (-sizes[name], name)):
        repeated = name in {before.get(other) for other in kept}
        if not repeated and all(killers.intersection(kept) != {name} for killers in mutants):
            kept.remove(name)
    return {*kept}


def core() -> list[str]:
    """The names of the cells of the core, in the order of the cases."""
    cells = cells_of(all_cases(), DTYPES)
    sizes = {Cell(case, dtype).key: sum(array.size for array in case.inputs.values()) for case, dtype in cells}
    before = {Cell(case, dtype).key: f"{case.again}/{dtype}" for case, dtype in cells if case.again}
    known = {mutant.name: outcome_of(mutant, *attempt(mutant, brief=True)).red for mutant in MUTANTS}
    mutants = killers_among(cells, known, killers(cells, derived_mutants())).values()
    kept = smallest_cover(mutants, sizes, before, all_cases().core)
    return [cell.key for cell in cells if cell.key in kept]


if __name__ == "__main__":
    CORE.write_text("".join(f"{name}\n" for name in core()), encoding="utf-8")
