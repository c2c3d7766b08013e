"""Every entry of the specification is in every place that CONTRIBUTING.md names; other tests take those that are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from attention_core.operators import ENTRIES, FILE_OF
from attention_core.specification import Layer, Operator
from backends import FRAMEWORKS
from parity_tests.reports.porting import PORTING
from parity_tests.tests.places import ROOT
from parity_tests.tests.structure.source import definitions, exported, parsed, unlisted

ROOMS = ("attention_core/reference", *(f"backends/{framework}" for framework in FRAMEWORKS))
BY_HAND = "parity_tests/tests/attention_core/test_reference_attention.py"
SCORES = ("scoring", "attention")
"""The files whose entries have a value by hand; the others are compared with other people's layers."""


def missing(entry: Operator | Layer) -> Iterator[str]:
    """The places in which an entry should be and is not."""
    name, file = entry.name, FILE_OF[entry.name]
    for room in ROOMS:
        module = parsed(ROOT / room / f"{file}.py")
        if name not in definitions(module):
            yield f"{room}/{file}.py does not define it"
        elif name not in exported(module):
            yield f"__all__ of {room}/{file}.py does not list it"
    # Cases and mutants find their entries while they are imported, so all of these have to be listed.
    from parity_tests.cases.covering import KIN
    from parity_tests.cases.suite import all_cases
    from parity_tests.mutants.families import MUTANTS

    cases = [case for case in all_cases() if KIN.get(case.operator, case.operator) == KIN.get(name, name)]
    if not any(case.operator == name and case.drawn is None for case in cases):
        yield "parity_tests/cases has no case of it"
    patterns = {pattern for mutant in MUTANTS for pattern in mutant.cases}
    if not any(fnmatchcase(case.id, pattern) for case in cases for pattern in patterns):
        yield "parity_tests/mutants has no mutant of it"
    if name not in PORTING:
        yield "parity_tests/reports/porting.toml has no other names and pitfalls of it"
    if file in SCORES and not re.search(rf"\breference\.{name}\b", (ROOT / BY_HAND).read_text(encoding="utf-8")):
        yield f"{BY_HAND} has no value of it by hand"


def test_every_entry_of_the_specification_is_in_every_place():
    alone = {name: "parity_tests/reports/porting.toml has it alone" for name in PORTING if name not in FILE_OF}
    places = [f"{name}: {place}" for name, place in {**alone, **unlisted()}.items()]
    places = places or [f"{entry.name}: {place}" for entry in ENTRIES for place in missing(entry)]
    assert not places, "\n" + "\n".join([*places, 'CONTRIBUTING.md, "Adding an operator", names all places.'])
