"""One call, one check, counted while it runs: a layer checks its call, and each layer inside it once at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from attention_core import errors
from attention_core.operators import find
from attention_core.specification import Layer, Operator
from parity_tests.cases.covering import TRANSFORMERS
from parity_tests.cases.suite import all_cases
from parity_tests.format.call import EARLIER, LISTS, bind, layer_called
from parity_tests.format.case import Case

CASES: dict[tuple[str, str], Case] = {}
for _case in all_cases():
    if not any(name.partition(".")[0] in LISTS for name in _case.inputs):  # of a list of arrays, nothing is checked
        CASES.setdefault((_case.operator, _case.method), _case)


def called(case: Case) -> set[str]:
    """The doors that a case goes through: what its method reads of `prepare` and `start` is made first."""
    entry = find(case.operator)
    if not isinstance(entry, Layer):
        return {case.operator}
    reads = {tensor.name.partition(".")[0] for tensor in entry.method(case.method).inputs}
    before = {"prepare"} if "memory" in reads else set()
    before |= {"start"} if case.method == "step" and before else set()
    before |= {"attend"} if case.method == "extend" else {"call"} if case.method == "pruned" else set()
    return {f"{case.operator}.{method}" for method in before | {case.method}}


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: f"{case.operator}-{case.method}".strip("-"))
def test_a_call_is_checked_once(backend: SimpleNamespace, case: Case, monkeypatch: pytest.MonkeyPatch):
    layer = None
    if case.method:
        layer = backend.runtime.build(getattr(backend.package, case.operator), case.config, "float64")
        backend.package.set_parameters(layer, case.parameters)
    given = {name: backend.runtime.from_numpy(array) for name, array in case.inputs.items()}
    checked: Counter[str] = Counter()
    present = errors._present

    def counted(operator: Operator, arrays: Mapping[str, Any]) -> dict[str, Any]:
        checked[operator.name] += 1
        return present(operator, arrays)

    monkeypatch.setattr(errors, "_present", counted)
    layer = layer_called(layer, case.method, case.options)
    bind(backend.package, case.operator, case.method, case.options)(layer, **given)
    inside = [name for name in checked if name.partition(".")[0] != case.operator]
    assert {*checked} - {*inside} == called(case)
    steps = 1 + given[EARLIER].shape[1] if EARLIER in given else 1
    assert all(checked[name] == (steps if name.endswith(".step") else 1) for name in called(case))
    # Several layers of one kind inside another are called as layers, for hooks: each checks its own call.
    assert case.operator in (*TRANSFORMERS, "InducedAttention") or all(checked[name] == 1 for name in inside)
    assert all("." in name for name in inside), "a layer calls a function that checks again"
    assert len(inside) == len({name.partition(".")[0] for name in inside}), "a layer inside it is checked twice"
