"""Every entry of the specification is in every place that CONTRIBUTING.md names; other tests take those that are."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from attention_core import operators
from attention_core.operators import ENTRIES, FILE_OF, OF_FILES
from attention_core.specification import Layer, Operator
from backends import FRAMEWORKS
from parity_tests.cases.covering import KIN
from parity_tests.cases.suite import all_cases
from parity_tests.mutants.families import MUTANTS
from parity_tests.reports.porting import PORTING
from parity_tests.tests.places import ROOT
from parity_tests.tests.structure.source import definitions, exported, parsed

ROOMS = ("attention_core/reference", *(f"backends/{framework}" for framework in FRAMEWORKS))
BY_HAND = "parity_tests/tests/attention_core/test_reference_attention.py"
SCORES = ("scoring", "attention")
"""The files whose entries have a value by hand; the others are compared with other people's layers."""


def unlisted() -> Iterator[str]:
    """What the files of the specification define and do not list, and what only the porting map knows."""
    for file in OF_FILES:
        module = importlib.import_module(f"{operators.__name__}.{file}")
        for name, entry in vars(module).items():
            if isinstance(entry, Operator | Layer) and "." not in entry.name and entry.name not in FILE_OF:
                yield f"{entry.name}: OPERATORS of attention_core/operators/{file}.py does not list {name}"
    yield from (f"{name}: parity_tests/reports/porting.py has it alone" for name in PORTING if name not in FILE_OF)


def missing(entry: Operator | Layer) -> Iterator[str]:
    """The places in which an entry should be and is not."""
    name, file = entry.name, FILE_OF[entry.name]
    for room in ROOMS:
        module = parsed(ROOT / room / f"{file}.py")
        if name not in definitions(module):
            yield f"{room}/{file}.py does not define it"
        elif name not in exported(module):
            yield f"__all__ of {room}/{file}.py does not list it"
    cases = [case for case in all_cases() if KIN.get(case.operator, case.operator) == KIN.get(name, name)]
    if not any(case.operator == name and case.drawn is None for case in cases):
        yield "parity_tests/cases has no case of it"
    patterns = {pattern for mutant in MUTANTS for pattern in mutant.cases}
    if not any(fnmatchcase(case.id, pattern) for case in cases for pattern in patterns):
        yield "parity_tests/mutants has no mutant of it"
    if name not in PORTING:
        yield "parity_tests/reports/porting.py has no other names and pitfalls of it"
    if file in SCORES and not re.search(rf"\breference\.{name}\b", (ROOT / BY_HAND).read_text(encoding="utf-8")):
        yield f"{BY_HAND} has no value of it by hand"


def test_every_entry_of_the_specification_is_in_every_place():
    places = [*unlisted(), *(f"{entry.name}: {place}" for entry in ENTRIES for place in missing(entry))]
    assert not places, "\n" + "\n".join([*places, 'CONTRIBUTING.md, "Adding an operator", names all places.'])
