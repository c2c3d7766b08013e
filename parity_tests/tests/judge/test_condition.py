"""The condition of a case: what it allows, what it never excuses, and that plain cases gain nothing by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attention_core import reference
from attention_core.draws import uniform
from backends.archives import load_arrays, save_arrays
from parity_tests import assert_parity
from parity_tests.cases.suite import all_cases
from parity_tests.format.case import Case
from parity_tests.format.drawn import Drawn
from parity_tests.format.expected import CONDITION, expected_values, files, outputs
from parity_tests.format.selection import Cell
from parity_tests.judge.compare import judge
from parity_tests.judge.condition import condition_of, judgeable, measure
from parity_tests.judge.nudges import Nudge, constant_normalizers, nudging
from parity_tests.judge.pair import widen
from parity_tests.judge.question import Question
from parity_tests.judge.run import CacheError, recheck, suspects
from parity_tests.judge.verdict import Verdict
from parity_tests.workers.answers import Answer
from parity_tests.workers.recordings import Recording

pytestmark = pytest.mark.once

CASES = {case.id: case for case in all_cases()}
PLAIN = ("-plain", "-none", "-open")
DOT = {"operator": "DotProductAttention", "quantity": "context"}


def growth_of(case: Case) -> dict[str, float]:
    """How many times its tolerance each quantity of a case may have."""
    growth = {}
    for name, quantity in Question(Cell(case, case.dtypes[0])).quantities.items():
        if quantity.floating and quantity.allowance > 0.0:
            growth[f"{case.id} {name}"] = quantity.largest_allowance / quantity.allowance
        if quantity.by_entry is not None and quantity.by_entry.eps:
            eps = quantity.by_entry.eps
            growth[f"{case.id} {name} by entry"] = (
                float(widen(quantity.dtype, eps, quantity.entry_condition).max()) / eps
            )
    return growth


@pytest.mark.parametrize("part", range(4))
def test_the_tolerances_of_plain_cases_do_not_grow(part: int):
    plain = [case for case in CASES.values() if case.id.endswith(PLAIN) and case.method != "train"]
    growth = {name: factor for case in plain[part::4] for name, factor in growth_of(case).items()}
    grown = {name: factor for name, factor in growth.items() if factor > 1.0}
    assert not [name for name in grown if "-plain " in name]
    # Scores of a Gaussian kernel, and of what was projected before, are sums of larger terms.
    assert len(grown) < 0.01 * len(growth) and max(grown.values()) < 6.0, grown


def test_the_condition_of_outputs_alone_is_kept_apart():
    case = CASES["masked_softmax-ragged"]
    whole, alone = files(case, "float64"), files(replace(case, gradients=False), "float64")
    assert whole["outputs"] == alone["outputs"] and whole[CONDITION] != alone[CONDITION]


def scores_to(largest: float, keys: int = 240, features: int = 128) -> dict[str, np.ndarray]:
    """Arguments of attention by inner products in float32, whose largest score is about that."""
    shapes = {"queries": (1, 8, features), "keys": (1, keys, features), "values": (1, keys, features)}
    arrays = {name: uniform(f"condition/{name}", shape, 3.0**0.5) for name, shape in shapes.items()}
    arrays["queries"] *= largest / 4.0
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def single(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The context in the dtype of the arguments."""
    scores = queries @ keys.swapaxes(-1, -2) / queries.dtype.type(np.sqrt(queries.shape[-1]))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)) @ values


def in_bits(array: np.ndarray, bits: int) -> np.ndarray:
    """The array rounded to so many bits of fraction, as TF32 (10) and bfloat16 (7) have them."""
    fraction, exponent = np.frexp(array)
    return np.ldexp(np.round(np.ldexp(fraction, bits + 1)), exponent - bits - 1).astype(array.dtype)


@pytest.mark.parametrize("largest", [1.0, 20.0, 100.0, 500.0])
def test_large_scores_are_right_and_a_row_that_is_off_is_not(largest: float):
    arrays = scores_to(largest)
    expected, _ = reference.DotProductAttention()(**{name: array.astype(float) for name, array in arrays.items()})
    actual = single(**arrays)
    assert_parity(actual, expected, inputs=arrays, **DOT)
    for row in range(actual.shape[1]):
        wrong = actual.copy()
        wrong[:, row] *= 1.0 + (1e-4 if largest <= 20.0 else 1e-3)
        with pytest.raises(AssertionError, match=r"context\[0, "):
            assert_parity(wrong, expected, inputs=arrays, **DOT)


def test_without_inputs_the_tolerance_is_that_of_well_conditioned_arrays_and_the_message_says_so():
    arrays = scores_to(500.0)
    expected, _ = reference.DotProductAttention()(**{name: array.astype(float) for name, array in arrays.items()})
    with pytest.raises(AssertionError, match=r"allowed 15 .* pass inputs=\.\.\. to measure these"):
        assert_parity(single(**arrays), expected, **DOT)
    with pytest.raises(AssertionError, match=r"a nudge of the inputs by one eps moves it by [1-9]\d+\.$"):
        assert_parity(1.01 * single(**arrays), expected, inputs=arrays, **DOT)


WRONG: dict[str, Callable[..., np.ndarray]] = {
    "TF32": lambda queries, keys, values: single(in_bits(queries, 10), in_bits(keys, 10), values),
    "bfloat16": lambda queries, keys, values: single(queries, keys, in_bits(values, 7)),
    "an exponential that is good to 1e-6": lambda queries, keys, values: single(queries, keys, values) * (1.0 + 1e-5),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("largest", [1.0, 4.0])
def test_arithmetic_of_another_precision_is_not_excused(wrong: Callable[..., np.ndarray], largest: float):
    arrays = scores_to(largest)
    expected, _ = reference.DotProductAttention()(**{name: array.astype(float) for name, array in arrays.items()})
    with pytest.raises(AssertionError):
        assert_parity(wrong(**arrays).astype(np.float32), expected, inputs=arrays, **DOT)


@pytest.mark.parametrize("largest", [1.0, 500.0])
def test_single_precision_inside_double_is_not_excused(largest: float):
    arrays = scores_to(largest)
    doubles = {name: array.astype(float) for name, array in arrays.items()}
    expected, _ = reference.DotProductAttention()(**doubles)
    assert_parity(single(**doubles), expected, inputs=doubles, **DOT)
    with pytest.raises(AssertionError):
        assert_parity(single(**arrays).astype(float), expected, inputs=doubles, **DOT)


def test_a_gradient_needs_its_cotangents_and_gets_its_own_condition():
    arrays = {name: array.astype(float) for name, array in scores_to(500.0, 8, 4).items()}
    case = Case("DotProductAttention", "gradients", "", arrays, method="call")
    right = expected_values(case, "float32")["gradient_queries"]
    with pytest.raises(ValueError, match="depends on what the outputs were multiplied with: pass cotangents"):
        assert_parity(right, right, operator="DotProductAttention", quantity="gradient_queries", inputs=arrays)
    with pytest.raises(ValueError, match="has no output 'contexts'; it has context, weights"):
        wrong = {"contexts": right}
        gradient = {"operator": "DotProductAttention", "quantity": "gradient_queries"}
        assert_parity(1.1 * right, right, inputs=arrays, cotangents=wrong, dtype="float32", **gradient)


def test_the_parameters_and_options_of_a_layer_are_inputs():
    shapes = {"W_q": (5, 3), "W_k": (5, 4), "w_v": (5,)}
    parameters = {name: uniform(name, shape, 30.0).astype(np.float32) for name, shape in shapes.items()}
    layer = reference.AdditiveAttention(3, 4, 5)
    reference.set_parameters(layer, {name: array.astype(float) for name, array in parameters.items()})
    arrays = {"queries": uniform("q", (2, 3, 3)), "keys": uniform("k", (2, 6, 4)), "values": uniform("v", (2, 6, 2))}
    lens = np.array([6, 2])
    expected, _ = layer(**arrays, valid_lens=lens)
    given = {**arrays, **parameters, "valid_lens": lens}
    named = {"operator": "AdditiveAttention", "quantity": "context", "dtype": "float32"}
    off = expected.copy()
    off[0, 0] *= 1.0 + 2.0**-18  # 32 eps
    with pytest.raises(AssertionError, match="allowed 150"):
        assert_parity(expected * 1.001, expected, inputs={**given, "hidden_size": 5}, **named)
    assert_parity(off, expected, inputs=given, **named)


def near_tie(gap: float) -> Case:
    """Hard attention between two keys whose scores differ by that part of themselves."""
    arrays = {
        "queries": np.array([[[1.0]]]),
        "keys": np.array([[[1.0], [1.0 + gap]]]),
        "values": np.array([[[1.0], [2.0]]]),
    }
    arrays["noise"] = np.full((1, 1, 2), 0.5)
    return Case(
        "HardAttention",
        f"gap_{gap}",
        "",
        arrays,
        method="call",
        config={"query_size": 1, "key_size": 1, "score": "dot"},
        gradients=False,
    )


@pytest.mark.parametrize(("gap", "flips"), [(2.0**-14, True), (0.5, False)])
def test_a_choice_that_flips_is_never_excused(gap: float, flips: bool):
    condition = condition_of(near_tie(gap), "float64")
    assert condition.flips == flips
    assert (condition.spread_of("context") is None) == flips


def test_a_branch_that_flips_is_not_taken_for_rounding():
    inputs = np.array([[[1.0, -1.0 + 2.0**-21]]])
    weights = {"W_1": np.array([[1.0, 1.0], [1.0, 0.5]]), "b_1": np.zeros(2), "W_2": np.eye(2), "b_2": np.zeros(2)}
    config = {"features": 2, "hidden_size": 2, "activation": "relu"}
    case = Case("FeedForward", "kink", "", {"inputs": inputs}, method="call", config=config, parameters=weights)
    assert condition_of(case, "float64").flips
    apart = {"inputs": np.array([[[1.0, -0.5]]])}
    assert not condition_of(Case(**{**vars(case), "name": "apart", "inputs": apart}), "float64").flips


def answered(case: Case, dtype: str, **changes: np.ndarray) -> list[Verdict]:
    """The red verdicts on an answer that is right but for these quantities."""
    right = {name: array.astype(dtype) for name, array in expected_values(case, dtype).items()}
    key = f"{case.id}/{dtype}"
    recording = Recording("test", "cpu", cells={key: {**right, **changes}}, answers={key: Answer()})
    return [verdict for verdict in judge(Question(Cell(case, dtype)), recording) if verdict.red]


def test_terms_that_cancel_may_leave_their_rounding_and_what_is_promised_may_not():
    cancels, hidden = CASES["DotProductAttention-one_key"], CASES["DotProductAttention-fully_masked"]
    gradient = np.zeros_like(cancels.inputs["queries"])
    gradient.flat[0] = 2.0**-53
    assert not expected_values(cancels, "float64")["gradient_queries"].any()
    assert not answered(cancels, "float64", gradient_queries=gradient)
    assert answered(cancels, "float64", gradient_queries=2.0**13 * gradient)
    for name in ("queries", "keys"):
        expected = expected_values(hidden, "float64")[f"gradient_{name}"]
        if not expected.any():
            tiny = np.full_like(expected, 2.0**-60)
            assert answered(hidden, "float64", **{f"gradient_{name}": tiny})


def test_nudges_move_every_number_that_is_read_and_leave_the_reference_as_it_was():
    before = dict(vars(reference.masking))
    case = CASES["DotProductAttention-none"]
    right = outputs(case, "float64")["context"]
    with nudging(0, 2.0**-20):
        layer = reference.DotProductAttention()
        moved, _ = layer(**case.inputs)
    assert 0.0 < np.abs(moved - right).max() < 2.0**-16
    with constant_normalizers():
        pass
    assert dict(vars(reference.masking)) == before
    nudge = Nudge(1, 2.0**-20)
    kept = {"noise": np.ones(3), "memory.dropout_mask": np.ones(3), "lens": np.arange(3)}
    assert all(nudge(name, array) is array for name, array in kept.items())
    assert (nudge("queries", np.ones(3)) != 1.0).all()


def test_a_forged_condition_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ATTENTION_PARITY_CACHE", str(tmp_path))
    case = CASES["DotProductAttention-gap_80"]
    measured, path = measure(case, "float64"), files(case, "float64")[CONDITION]
    condition_of(case, "float64")
    recheck({path: load_arrays(path)}, [Cell(case, "float64")])
    save_arrays(path, {name: 10 * array if name.startswith("rows") else array for name, array in measured.items()})
    with pytest.raises(CacheError, match="condition rows/"):
        recheck({path: load_arrays(path)}, [Cell(case, "float64")])


def test_what_a_condition_made_green_is_computed_again():
    cells = [Cell(case, "float64") for case in list(CASES.values())[:40]]
    blank = Verdict("x", cells[3].case.id, "torch", "reference", "cpu", "float64", "context", "pass", condition=20.0)
    assert cells[3] in suspects(cells, [blank])[:1]


def test_a_case_that_needs_too_much_is_not_judged():
    drawn = Drawn(
        "masked_softmax", dtype="bfloat16", sizes={"batch": 2, "queries": 33, "keys": 5}, scales={"scores": 200.0}
    )
    for one, certain in ((drawn, False), (replace(drawn, scales={}), True)):
        judged = judgeable(one)
        assert judged is not None and Question(judged.cell).is_certain == certain
        right = expected_values(judged.case, "bfloat16")["weights"]
        # What is wrong in its numbers alone is not judged then, and what is wrong in another way is.
        assert bool(answered(judged.case, "bfloat16", weights=(1.5 * right).astype("bfloat16"))) == certain
        assert answered(judged.case, "bfloat16", weights=right)
