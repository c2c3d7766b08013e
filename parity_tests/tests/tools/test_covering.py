"""The rows of the covering design are those that were searched."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import chain

import pytest

from parity_tests.cases import covering
from parity_tests.format.drawn import parse_drawn
from tools import design

pytestmark = pytest.mark.once


def test_the_covering_design_meets_every_setting_and_is_what_is_kept():
    made, kin = design.design(), defaultdict(set)
    for call in covering.calls():
        kin[call.kin] |= design.required_settings(call)
    missed = {name: settings - made.single[name] for name, settings in kin.items()}
    assert {name: settings for name, settings in missed.items() if settings} == {}
    rows, kept = (
        chain.from_iterable(made.rows.values()),
        map(parse_drawn, covering.LINES.read_text("utf-8").splitlines()),
    )
    judged = {"seed": 0, "forward": True}  # which are chosen so that the row can be judged
    message = "its rows have changed: python -m tools.covering"
    assert [replace(row, **judged) for row in rows] == [replace(row, **judged) for row in kept], message
