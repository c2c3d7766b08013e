"""The list of slow tests names tests that exist, and leaves no test function out of a run."""

from __future__ import annotations

import ast
from pathlib import Path

from parity_tests.tests.places import ROOT
from parity_tests.tests.slow import slow
from tools.slow_tests import SECONDS, seconds_of, slow_instances

REPORT = '<testsuite><testcase classname="tests.test_a" name="test_b[x]" time="{time}"/></testsuite>'


def functions_of(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_what_is_listed_exists_and_has_parameters():
    names = sorted(slow())
    assert names
    for name in names:
        path, _, test = name.partition("::")
        function, parameters, _ = test.partition("[")
        assert function in functions_of(ROOT / path) and parameters, f"{name}: write the list anew, see CONTRIBUTING.md"


def test_the_fastest_instance_of_a_function_is_never_slow():
    assert slow_instances({"a::f[torch]": 9.0, "a::f[tf]": 5.0, "a::f[jax]": 1.0, "a::g[x]": 99.0, "a::h": 99.0}) == [
        "a::f[tf]",
        "a::f[torch]",
    ]
    assert slow_instances({"a::f[torch]": SECONDS, "a::f[tf]": SECONDS}) == ["a::f[torch]"]


def test_the_longest_time_in_several_reports_counts(tmp_path: Path):
    for time in ("2.0", "7.0", "1.0"):
        (tmp_path / f"{time}.xml").write_text(REPORT.format(time=time), encoding="utf-8")
    assert seconds_of(tmp_path.glob("*.xml")) == {"tests/test_a.py::test_b[x]": 7.0}
