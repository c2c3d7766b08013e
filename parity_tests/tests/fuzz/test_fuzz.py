"""Fuzzing: draw cases, find differences, and shrink them. Workers are real processes."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import backends
from attention_core.operators import FILE_OF, find
from attention_core.specification import INTEGER, Layer
from parity_tests.cases import covering, regressions
from parity_tests.cases.covering import GROUPS, LEAST, Call, is_forward
from parity_tests.cases.draw import FAMILY, HIDDEN, draw
from parity_tests.cli.main import main
from parity_tests.format import expected as reference
from parity_tests.format.case import FULL, least_normal
from parity_tests.format.drawn import (
    LENGTHS,
    NAMES,
    PATTERNS,
    Drawn,
    axes_of,
    called_of,
    methods_of,
    parse_drawn,
)
from parity_tests.format.layouts import LAYOUTS
from parity_tests.format.selection import cells_of
from parity_tests.fuzz.campaign import Campaign, Server
from parity_tests.fuzz.shrink import shrink
from parity_tests.judge.condition import judgeable
from parity_tests.judge.drawn_cells import Abilities
from parity_tests.judge.question import Question
from parity_tests.judge.run import run
from parity_tests.judge.tolerances import MOST
from parity_tests.tests.places import FAKES, ROOT
from parity_tests.workers.process import Job, WorkerFault

pytestmark = pytest.mark.once

EXAMPLES = 200
STEPS = {"jax": 2}
"""JAX compiles for each family: it gets few of them, and the others a few cases of each of many."""


def planted(bug: str) -> Job:
    """The reference as a backend, with a bug in it."""
    path = os.pathsep.join([str(ROOT), str(FAKES)])
    return Job("planted", "planted_backend", variables={"PYTHONPATH": path, "PLANTED": bug})


def fuzzed(job: Job, examples: int, *operators: str, step: int = 7, dtypes: tuple[str, ...] = FULL) -> Campaign:
    with Server(job) as server:
        campaign = Campaign([server], 0, step=step, operators=operators or NAMES, dtypes=dtypes)
        list(campaign.run(examples=examples))
    return campaign


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    return [draw(0, FAMILY * number, [operator]) for operator in NAMES for number in range(120)]


@pytest.fixture(scope="module")
def made(drawn: list[Drawn]) -> list[dict[str, Any]]:
    """The drawn cases with their arrays."""
    return [case.as_case() for case in drawn]


# ------------------------------------------------------------------------------------------------ what is drawn


def test_a_seed_and_a_number_are_one_case():
    assert [draw(3, number) for number in range(50)] == [draw(3, number) for number in range(50)]
    assert draw(3, 7) != draw(4, 7) != draw(4, 8)
    assert repr(draw(3, 7, ["masked_softmax"], ["float64"])) == PINNED


PINNED = (
    'Drawn("masked_softmax", seed=25519, sizes={"batch": 2, "heads": 2, "keys": 0, "queries": 3}, '
    'given=("valid_lens", "mask"), wild=True, scales={"scores": 0.0009765625}, infinite=True, hidden="nan", twice=True)'
)


def test_a_line_describes_a_case_completely(drawn: list[Drawn], made: list[dict[str, Any]]):
    for case, first in zip(drawn, made, strict=True):
        line = repr(case)
        assert "\n" not in line and parse_drawn(line) == case
        second = parse_drawn(line).as_case()
        for name, array in {**first["inputs"], **first["parameters"]}.items():
            again = {**second["inputs"], **second["parameters"]}[name]
            assert array.dtype == again.dtype and array.tobytes() == again.tobytes()


def test_every_argument_and_option_is_passed_and_omitted(drawn: list[Drawn]):
    given, calls = defaultdict(set), defaultdict(set)
    for case in drawn:
        entry = find(case.operator)
        names = [tensor.name for tensor in Call(entry, case.method).inputs if tensor.optional]
        options = [*called_of(entry, case.method).options, *(entry.options if isinstance(entry, Layer) else ())]
        # An option that is an axis is always among the sizes, and a dtype is the dtype.
        always = {*axes_of(entry, case.method), "dtype"}
        names += [option.name for option in options if option.default is not None and option.name not in always]
        calls[case.operator].add(case.method)
        for name in names:
            given[case.operator, name].add(name in {*case.given, *case.options, *case.sizes})
    assert {operator: set(methods_of(find(operator))) for operator in NAMES} == calls
    assert {name for name, seen in given.items() if seen != {True, False}} == set()


def test_every_axis_has_one_and_more_and_may_be_empty(drawn: list[Drawn]):
    sizes = defaultdict(set)
    for case in drawn:
        for axis, size in case.sizes.items():
            sizes[axis].add(min(size, 2))
    buckets = {case.sizes["num_buckets"] for case in drawn if case.operator == "relative_bias"}
    assert min(buckets) == 4, "as few as there may be"
    for name in ("num_buckets", "max_distance", "height", "width"):  # an image has patches of every size
        sizes.pop(name)
    fixed = {option.name for name in NAMES if isinstance(entry := find(name), Layer) for option in entry.options}
    assert {axis: drawn for axis, drawn in sizes.items() if not {1, 2} <= drawn} == {}
    some = {"num_best", "layers"}  # weights of no layer are refused
    assert {axis for axis, drawn in sizes.items() if 0 not in drawn} - fixed - some == set()


def test_every_kind_of_number_is_drawn(drawn: list[Drawn], made: list[dict[str, Any]]):
    assert {kind for case in drawn for kind in case.types.values()} == {*INTEGER} - {"int32"}
    assert {case.dtype for case in drawn} == {*FULL}
    assert {case.hidden for case in drawn} == {*HIDDEN}
    for name in ("rows", "wild", "whole", "infinite", "ones"):
        assert {bool(getattr(case, name)) for case in drawn} == {True, False}, name
    lens = np.concatenate([case["inputs"]["valid_lens"].ravel() for case in made if "valid_lens" in case["inputs"]])
    assert lens.min() < 0 and 0 in lens and lens.max() > 10
    inputs = [array for case in made for array in case["inputs"].values() if array.dtype.kind == "f"]
    assert any(np.isnan(array).any() for array in inputs) and any((array == -np.inf).any() for array in inputs)
    largest = [np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in inputs]
    assert any(0.0 < bound < 2e-3 for bound in largest) and any(1e6 < bound < 1e7 for bound in largest)
    smallest = [np.abs(array[np.isfinite(array) & (array != 0.0)]).min(initial=1.0) for array in inputs]
    assert min(smallest) > least_normal("float32")


def test_every_dimension_of_the_design_is_drawn(drawn: list[Drawn]):
    calls = list(covering.calls())
    assert {case.pattern for case in drawn} == {"", *PATTERNS}
    assert {case.lens for case in drawn} == {"", *LENGTHS}
    assert {layout for case in drawn for layout in case.layouts.values()} == {*LAYOUTS}
    assert {case.shared for case in drawn} == {(), *(way for call in calls for way in covering.sharing(call))}
    for name in ("twice", "changed", "forward"):
        assert {bool(getattr(case, name)) for case in drawn} == {False, True}, name
    wide = [draw(0, number, ["masked_softmax"]) for number in range(0, 200 * FAMILY, 4)]
    bounds = {(case.dtype, bound) for case in (*drawn, *wide) for bound in case.scales.values()}
    assert {pair for of_kind in covering.BOUNDS.values() for pair in of_kind.items()} - bounds == set()
    sizes = {(axis, size) for case in drawn for axis, size in case.sizes.items()}
    expected = {(axis, size) for call in calls for axis in AXES for size in call.choices.get(axis, ())}
    assert expected - sizes == set()
    pairs = {pair for call in calls for pair in call.coincidences}
    equal = {pair for case in drawn for pair in pairs if case.sizes.get(pair[0], 0) == case.sizes.get(pair[1]) != 1}
    assert equal == pairs


AXES = ("batch", "queries", "keys", "value_features", "steps", "num_heads", "num_layers")
"""Those of which many functions have every size."""


def test_parts_that_exclude_each_other_are_not_drawn_together(drawn: list[Drawn]):
    for case in drawn:
        assert not case.hidden or ("queries" not in case.shared and "expanded" not in case.layouts.values())
        least = LEAST.get(case.operator, {})
        assert not any(case.sizes[axis] in range(1, size) for axis, size in least.items())
    assert all(draw(0, FAMILY * number, dtypes=("float16", "bfloat16")).forward for number in range(100))


def test_a_draw_without_key_heads_hides_nothing():
    sizes = {"batch": 2, "heads": 3, "key_heads": 0, "queries": 2, "keys": 3, "features": 2}
    drawn = Drawn("DotProductAttention", method="call", sizes=sizes, given=("mask",), hidden="nan")
    assert drawn.as_case()["inputs"]["keys"].shape == (2, 0, 3, 2)


def test_a_family_has_the_same_shapes_and_gradients():
    for family in range(30):
        alike = [draw(5, FAMILY * family + number) for number in range(FAMILY)]
        assert len({repr(case) for case in alike}) == FAMILY
        for name in ("operator", "method", "dtype", "sizes", "options", "given", "ones", "types", *SHAPING):
            assert all(getattr(case, name) == getattr(alike[0], name) for case in alike), name


SHAPING = ("rows", "shared", "twice", "forward")


@pytest.mark.parametrize("part", range(9))
def test_the_reference_accepts_every_case_and_most_can_be_judged(drawn: list[Drawn], part: int):
    judged = [judgeable(case) for case in drawn[3 * part :: 27]]
    uncertain = sum(case is None for case in judged)
    for case in filter(None, judged):
        with reference.in_memory():
            expected = reference.expected_values(*case.cell)
            uncertain += not Question(case.cell).is_certain
        for name, array in expected.items():
            # The scores of hypotheses that no step has made, and what is added to a hidden score.
            nothing = array == -np.inf if name in ("scores", "additive_mask") else False
            assert (np.isfinite(array) | nothing).all(), f"{name} of {case.drawn}"
    assert uncertain < len(judged) / 10


# ------------------------------------------------------------------------------------------------ what is found


@pytest.mark.parametrize(
    ("line", "quantity", "measured"),
    [
        (
            'Drawn("MultiHeadAttention", method="call", seed=61755, sizes={"queries": 4, "value_size": 3}, '
            'options={"bias": False, "need_weights": False}, given=("mask", "dropout_mask"))',
            "gradient_dropout_mask",
            21.9,
        ),
        (
            'Drawn("MultiHeadAttention", method="attend", dtype="float32", seed=5129, sizes={"hidden_size": 2}, '
            'options={"bias": False})',
            "context",
            25.6,
        ),
        (
            'Drawn("cosine_score", seed=39363, sizes={"batch": 2, "features": 2, "keys": 2, "queries": 2}, '
            'pattern="graded", layouts={"queries": "strided"})',
            "gradient_queries",
            99.7,
        ),
    ],
    ids=["cancelling gradient", "two terms that move alike", "gradient of nearly parallel vectors"],
)
def test_the_error_of_a_right_answer_is_allowed(line: str, quantity: str, measured: float):
    """What PyTorch answered to cases of a campaign, in eps, where 15 were allowed."""
    judged = judgeable(parse_drawn(line))
    assert judged is not None and measured < Question(judged.cell).quantities[quantity].largest_allowance


def test_a_choice_between_cosines_of_one_feature_is_not_judged():
    assert judgeable(Drawn("HardAttention", method="extend", sizes={"batch": 9}, options={"score": "cosine"})) is None


@pytest.mark.parametrize(
    ("bug", "operator", "simplest"),
    [
        ("scale_ignored", "scaled_dot_score", 'Drawn("scaled_dot_score", options={"scale": 0.0})'),
        ("scale_off", "scaled_dot_score", 'Drawn("scaled_dot_score")'),
        ("mask_inverted", "masked_softmax", 'Drawn("masked_softmax", sizes={"heads": 1}, given=("mask",))'),
        ("one_query", "masked_softmax", 'Drawn("masked_softmax")'),
        ("buffer_reused", "scaled_dot_score", 'Drawn("scaled_dot_score", twice=True)'),
        (
            "transposed",
            "scaled_dot_score",
            'Drawn("scaled_dot_score", sizes={"features": 2, "queries": 2}, layouts={"queries": "transposed"})',
        ),
        (
            "values_are_keys",
            "DotProductAttention",
            'Drawn("DotProductAttention", method="call", shared=("values",))',
        ),
    ],
)
def test_a_planted_bug_is_found_shrunk_and_red_until_it_is_gone(
    bug: str, operator: str, simplest: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (finding,) = fuzzed(planted(bug), 150, operator).findings.values()
    assert repr(finding.drawn) == simplest
    assert finding.verdict.status == "fail" and finding.verdict.operator == operator
    monkeypatch.setenv("ATTENTION_PARITY_CACHE", str(tmp_path))
    monkeypatch.setattr(regressions, "FOUND", (parse_drawn(simplest),))
    (case,) = regressions.found_cases(operator)
    assert run(cells_of([case], ["float64"]), [planted(bug)]).red
    assert not run(cells_of([case], ["float64"]), [planted("")]).red


def test_a_scale_that_is_off_by_little_is_found_in_float64_in_most_cases():
    campaign = fuzzed(planted("scale_off"), 100, "scaled_dot_score", dtypes=("float64",))
    ((kind, _),) = campaign.findings.items()
    assert campaign.repeated[kind] > 60


def test_without_a_bug_nothing_is_found():
    campaign = fuzzed(planted(""), 300)
    assert campaign.findings == {} and campaign.done == 300
    assert sum(campaign.cases.values()) == 300 - campaign.left_out
    assert max(campaign.worst.values()) < 0.5


@pytest.mark.parametrize(("fault", "status"), [("SIGSEGV", "crash"), ("exit", "crash"), ("raise", "error")])
def test_a_fault_is_a_finding_and_reported_once(fake_job, fault: str, status: str):
    with Server(fake_job(f"{fault}@valid_lens")) as server:
        campaign = Campaign([server], 0, operators=["masked_softmax"])
        (finding,) = filter(None, campaign.run(examples=200))
    assert finding.verdict.status == status
    # A crash costs a worker: what few tries reach depends on chance, but what makes it crash is always kept.
    assert "valid_lens" in finding.drawn.given
    assert status == "crash" or repr(finding.drawn) == 'Drawn("masked_softmax", given=("valid_lens",))'
    (repeated,) = campaign.repeated.values()
    # A call that has ended the worker is not made again, but the next batch may have been sent already.
    assert repeated in (1, 2) if status == "crash" else repeated > 50


def test_a_worker_that_hangs_is_a_finding(fake_job):
    with Server(fake_job("hang@valid_lens"), cell_seconds=1.0) as server:
        campaign = Campaign([server], 0, operators=["attention_mask"])
        (finding,) = filter(None, campaign.run(examples=2))
    assert finding.verdict.status == "timeout"


def test_a_worker_that_cannot_start_is_reported_with_its_last_output(fake_job):
    with Server(fake_job("import")) as server, pytest.raises(WorkerFault) as fault:
        list(Campaign([server], 0).run(examples=20))
    assert "fake cannot start" in str(fault.value) and "this backend was told not to start" in str(fault.value)


def test_shrinking_ends_at_the_simplest_case_that_differs(drawn: list[Drawn]):
    case = next(case for case in drawn if case.operator == "AdditiveAttention" and len(repr(case)) > 300)
    tried = []

    def differs(candidate: Drawn) -> bool:
        tried.append(candidate)
        return candidate.sizes.get("keys", 1) > 1 and candidate.dtype == case.dtype

    case = replace(case, sizes={**case.sizes, "keys": 4}, dtype="float32")
    assert shrink(case, differs) == Drawn(case.operator, case.method, "float32", sizes={"keys": 2})
    assert len(tried) < 200


@pytest.mark.parametrize("name", ["pattern", "lens", "layouts", "shared", "twice", "forward"])
def test_shrinking_drops_a_field_unless_the_difference_needs_it(drawn: list[Drawn], name: str):
    with_it = [case for case in drawn if getattr(case, name) and case.method in ("", "call")]
    case = next(case for case in with_it if name != "forward" or not always_forward(case))
    assert not getattr(shrink(case, lambda candidate: True), name)
    kept = shrink(case, lambda candidate: getattr(candidate, name) == getattr(case, name))
    assert getattr(kept, name) == getattr(case, name) and len(repr(kept)) < len(repr(case))


def always_forward(case: Drawn) -> bool:
    """Whether even the simplest call of its method has no gradients."""
    return is_forward(Call(find(case.operator), case.method), Drawn(case.operator, method=case.method))


def test_a_product_of_large_square_matrices_has_no_gradients():
    call = Call(find("attention_rollout"), "")
    sizes = {"batch": 1, "heads": 3, "layers": 2, "steps": 33}
    assert is_forward(call, Drawn("attention_rollout", sizes=sizes))
    assert not is_forward(call, Drawn("attention_rollout", sizes={**sizes, "steps": 5}))


def test_shrinking_adds_no_gradients_that_are_rounding_alone(drawn: list[Drawn]):
    tiny = [case for case in drawn if 1e-30 in case.scales.values() and case.forward]
    case = next(case for case in tiny if GROUPS[FILE_OF[case.operator]] == "layers" and case.method == "call")
    kept = shrink(case, lambda candidate: 1e-30 in candidate.scales.values())
    assert kept.forward and not shrink(case, lambda candidate: True).forward


def test_a_case_of_which_no_part_can_go_stays_as_it_is(drawn: list[Drawn]):
    for case in drawn[::1000]:
        assert shrink(case, lambda candidate: False) == case


# ------------------------------------------------------------------------------------------------ the command line


def test_the_command_prints_a_line_that_can_be_copied(monkeypatch: pytest.MonkeyPatch):
    def registered() -> dict[str, backends.Availability]:
        return {"planted": backends.Availability("planted", "planted_backend", {})}

    monkeypatch.setattr(backends, "available", registered)
    monkeypatch.setattr("parity_tests.cli.run.Job", lambda *arguments, **keywords: planted("one_query"))
    arguments = ["fuzz", "--examples", "160", "--operator", "masked_softmax", "--dtype", "float64", "--seed", "5"]
    result = CliRunner().invoke(main, arguments)
    lines = [line for line in result.output.splitlines() if not line.startswith("finished")]
    assert result.exit_code == 1, result.output
    assert '    Drawn("masked_softmax"),' in lines and "planted masked_softmax weights: fail" in lines[0]
    assert "--backend planted --seed 5 --operator masked_softmax --dtype float64 --first " in lines[2]
    assert "seed 5, numbers 0 to 159" in result.output
    again = lines[2].split()[2:]
    result = CliRunner().invoke(main, ["fuzz", *again])
    assert result.exit_code == 1 and result.output.splitlines()[:2] == lines[:2]


# ------------------------------------------------------------------------------------------------ the backends


def reasons(campaign: Campaign) -> str:
    return "\n".join(f"{finding.drawn}: {finding.verdict.reason}" for finding in campaign.findings.values())


def test_a_backend_agrees_with_the_reference_on_drawn_cases(backend: SimpleNamespace):
    campaign = fuzzed(Job(backend.name, f"backends.{backend.name}"), EXAMPLES, step=STEPS.get(backend.name, 7))
    assert not campaign.findings, reasons(campaign)
    assert sum(campaign.cases.values()) > EXAMPLES / 2


def test_half_dtypes_agree_where_differences_exceed_rounding(backend: SimpleNamespace):
    dtypes = tuple(dtype for dtype in ("float16", "bfloat16") if Abilities(backend.name).knows(dtype))
    job = Job(backend.name, f"backends.{backend.name}")
    campaign = fuzzed(job, 96, "masked_softmax", "dot_score", "attention_pooling", dtypes=dtypes)
    assert not campaign.findings, reasons(campaign)
    assert campaign.cases[backend.name, "masked_softmax"] > 10


def test_a_dtype_is_absent_where_the_framework_has_none(backend: SimpleNamespace):
    absent = []
    for dtype in (*MOST, *INTEGER):
        try:
            backend.runtime.from_numpy(np.zeros(2, dtype))
        except (KeyError, TypeError):
            absent.append(dtype)
    assert absent == [dtype for dtype in (*MOST, *INTEGER) if not Abilities(backend.name).knows(dtype)]


def test_the_command_refuses_an_operator_that_is_not_drawn():
    """An operator that takes a function has no case; it is refused before a worker starts."""
    result = CliRunner().invoke(main, ["fuzz", "--operator", "taylor_importance", "--examples", "1"])
    assert result.exit_code == 2 and "taylor_importance" in result.output
    (option,) = (one for one in main.commands["fuzz"].params if one.name == "operators")
    assert option.default == ",".join(NAMES)
