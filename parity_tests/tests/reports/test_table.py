"""The lines about what is red."""

from __future__ import annotations

from parity_tests.judge.verdict import Verdict
from parity_tests.reports.table import _case_line

WRONG = Verdict("op", "op-case", "mine", "reference", "cpu", "float64", "weights", "fail", reason="is too far " * 12)


def test_what_is_wrong_is_wrapped_under_its_case_on_a_terminal():
    first, *others = _case_line(WRONG, {}, 60).splitlines()
    assert first.startswith(f"{' ' * 12}case  float64  is too far") and others
    assert all(len(line) <= 60 for line in (first, *others))
    assert all(line.startswith(" " * 14) and line[14] != " " for line in others)


def test_what_is_wrong_stays_in_one_line_elsewhere():
    assert _case_line(WRONG, {}, None) == f"{' ' * 12}case  float64  {WRONG.reason}"
