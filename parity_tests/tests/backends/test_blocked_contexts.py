"""The context alone, of inner products and of additive scores, in blocks: the numbers of the plain formula."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from attention_core.draws import uniform
from attention_core.operators import LAYERS
from attention_core.specification import Layer
from parity_tests.cases.suite import all_cases
from parity_tests.tests.backends.blocks import Ways, assert_close, by_blocks, on_path, plainly

pytestmark = pytest.mark.implements("blocked/dot_product.py")

SMALL: dict[str, Ways] = {
    "torch": {
        f"{kernel}, {part}": {
            "additive.BY_FEATURES": 2 * 7,
            "additive.BY_ROWS": 2 * 7 * 4,
            "blocks.BY_SCORES": scores,
            **dict.fromkeys(("additive.ROWS", "dot_product.ROWS"), 2),
            **dict.fromkeys(("additive.KEYS", "dot_product.KEYS"), 3),
        }
        | ({} if kernel == "by features" else {"additive.takes_exponentials": lambda *_: False})
        for kernel in ("by features", "by rows")
        for part, scores in (("rows", 2 * 7), ("sequences", 2**18))
    },
    "tf": {"": {"blocks.DOT_BLOCK": 3 * 7, "additive.BLOCK": 2 * 3 * 4, "additive.PART": 3 * 4}},
    "jax": {"": {"dot_product.ROWS": 3, "dot_product.COLUMNS": 2, "additive.ROWS": 2, "blocks.BLOCK": 16}},
}
"""Blocks of some of five rows and some of seven keys, the last ones smaller, for each way that a backend has."""

KINDS = pytest.mark.parametrize("kind", ["dot", "additive"])

OPEN = np.arange(7) < np.array([7, 0, 4])[:, None]
CAUSAL = np.arange(7) <= np.arange(5)[:, None]
MIXED = uniform("rows", (3, 1, 5, 7)) > -0.4
MIXED[0, 0, 1], MIXED[1, :, :, 2] = False, False  # a fully masked row, and a key that is hidden from all
MASKS: dict[str, tuple[tuple[int, ...], np.ndarray | None]] = {
    "padding": ((3,), OPEN[:, None]),
    "heads, none": ((3, 2), None),
    "heads, causal": ((3, 2), CAUSAL[None, None]),
    "heads, mixed": ((3, 2), MIXED),
    "all axes": ((3, 2), uniform("hidden", (3, 2, 5, 7)) > 0),
    "one for all sequences": ((3, 2), uniform("heads", (1, 2, 5, 7)) > -0.3),
    "one for all keys": ((3, 2), uniform("queries", (3, 2, 5, 1)) > -0.3),
}
"""The axes before queries, which are sequences and heads, and a mask."""


def drawn(
    kind: str,
    *lead: int,
    mask: np.ndarray | None = None,
    queries: int = 5,
    keys: int = 7,
    hidden: int = 4,
    values: int = 6,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Queries, keys and values, a mask or none, and w_v for additive scores; and a cotangent of the context."""
    shapes = {"queries": (*lead, queries, hidden), "keys": (*lead, keys, hidden), "values": (*lead, keys, values)}
    shapes |= {"w_v": (hidden,)} if kind == "additive" else {}
    arrays = {name: uniform(name, shape) for name, shape in shapes.items()}
    return arrays | ({} if mask is None else {"mask": mask}), uniform("c", (*lead, queries, values))


@KINDS
@pytest.mark.parametrize("name", MASKS)
def test_a_context_in_blocks_has_the_numbers_and_gradients_of_the_plain_formula(
    backend: SimpleNamespace, name: str, kind: str
):
    lead, mask = MASKS[name]
    arrays, cotangent = drawn(kind, *lead, mask=mask)
    expected = plainly(backend, kind, arrays, cotangent)
    assert_close(by_blocks(backend, kind, SMALL, arrays, cotangent, graph=True), expected)


@pytest.mark.parametrize("name", ["padding", "heads, mixed"])
def test_bounded_scores_have_the_numbers_and_gradients_of_the_plain_formula(backend: SimpleNamespace, name: str):
    lead, mask = MASKS[name]
    arrays, cotangent = drawn("bounded", *lead, mask=mask)
    expected = plainly(backend, "bounded", arrays, cotangent)
    assert_close(by_blocks(backend, "bounded", SMALL, arrays, cotangent), expected)


@pytest.mark.parametrize("kind", ["dot", "bounded"])
@pytest.mark.parametrize("shape", [(3, 2, 5, 7), (1, 2, 1, 7), (3, 1, 5, 1)])
def test_a_bias_gets_the_sum_of_the_gradients_of_what_it_is_added_to(
    backend: SimpleNamespace, shape: tuple[int, ...], kind: str
):
    lead, mask = MASKS["heads, mixed"]
    arrays, cotangent = drawn(kind, *lead, mask=mask)
    arrays["bias"] = uniform("bias", shape)
    arrays["bias"][0, 0, 0, 0] = -np.inf
    expected = plainly(backend, kind, arrays, cotangent)
    assert_close(by_blocks(backend, kind, SMALL, arrays, cotangent, graph=kind == "dot"), expected)


def test_heads_that_share_keys_add_their_gradients(backend: SimpleNamespace):
    (batch, heads), mask = MASKS["all axes"]
    arrays, cotangent = drawn("dot", batch, heads, mask=mask)
    shared = {name: arrays[name][:, :1] for name in ("keys", "values")}
    repeated = {name: array.repeat(heads, axis=1) for name, array in shared.items()}
    expected = plainly(backend, "dot", {**arrays, **repeated}, cotangent)
    expected[2:] = [gradient.sum(axis=1, keepdims=True) for gradient in expected[2:]]
    assert_close(by_blocks(backend, "dot", SMALL, {**arrays, **shared}, cotangent, graph=True), expected)


@pytest.mark.parametrize("name", ["padding", "heads, mixed"])
def test_scores_without_an_exponential_have_the_context_of_the_plain_formula(backend: SimpleNamespace, name: str):
    """That of a row, say, that only fills a block."""
    lead, mask = MASKS[name]
    arrays, cotangent = drawn("additive", *lead, mask=mask)
    arrays["w_v"] *= 1000.0
    expected = plainly(backend, "additive", arrays, cotangent)
    assert_close(by_blocks(backend, "additive", SMALL, arrays, cotangent), expected, 1e-11)


NOT_FINITE: dict[str, tuple[dict[str, float], ...]] = {
    "dot": (
        {"keys": -np.inf, "values": np.nan},
        {"keys": -np.inf},
        *({name: number} for name in ("queries", "keys", "values") for number in (np.nan, np.inf)),
    ),
    "additive": (
        {"keys": 400.0},
        {"values": 1e300},
        *({name: number} for name in ("queries", "keys", "values") for number in (np.nan, np.inf)),
        *({"w_v": number} for number in (np.nan, np.inf, -np.inf)),
    ),
}


@KINDS
def test_what_is_not_finite_reaches_what_it_reaches_in_the_plain_formula(backend: SimpleNamespace, kind: str):
    several, hidden_rows = NOT_FINITE[kind], [0]
    if backend.name == "tf":  # which then takes the plain formula: whatever the mask hides, NaN is where it has it
        several, hidden_rows = (*several, {"keys": 1e200, "values": np.inf}), [0, 3, 5]
    for rows in hidden_rows:
        mask = np.ones((3, 5, 7), bool)
        mask[1, :rows, 3] = False
        for spoilt in several:
            arrays, cotangent = drawn(kind, 3, mask=mask)
            arrays["queries"], arrays["keys"] = np.abs(arrays["queries"]), np.abs(arrays["keys"])
            for name, number in spoilt.items():
                arrays[name][(1, 3) if arrays[name].ndim > 1 else 1] = number
            expected = plainly(backend, kind, arrays, cotangent)
            actual = by_blocks(backend, kind, SMALL, arrays, cotangent)
            # 1.3e-13 has been seen, of a gradient that is 1/130 of the terms it is a sum of.
            assert_close(actual, expected, 1e-14 if kind == "dot" else 3e-13, words=str(spoilt))
            if spoilt == NOT_FINITE["dot"][0]:  # a score of -inf hides its value, too
                assert all(np.isfinite(context).all() for context, *_ in actual.values())


@KINDS
def test_a_nan_in_a_query_spoils_its_own_row_alone(backend: SimpleNamespace, kind: str):
    arrays, cotangent = drawn(kind, 3, mask=OPEN[[0, 2, 0], None])
    arrays["queries"][1, 3, 2] = np.nan
    for way, (context, *_) in by_blocks(backend, kind, SMALL, arrays, cotangent).items():
        assert np.argwhere(np.isnan(context).any(axis=-1)).tolist() == [[1, 3]], way


@KINDS
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("axis", ["lead", "queries", "keys", "hidden", "values"])
def test_a_context_in_blocks_accepts_empty_axes(backend: SimpleNamespace, axis: str, masked: bool, kind: str):
    sizes = {"lead": 2, "queries": 5, "keys": 7, axis: 0}
    mask = (np.arange(sizes["keys"]) < 4)[None, None].repeat(sizes["lead"], 0) if masked else None
    arrays, cotangent = drawn(kind, sizes.pop("lead"), mask=mask, **sizes)
    expected = plainly(backend, kind, arrays, cotangent)
    assert_close(by_blocks(backend, kind, SMALL, arrays, cotangent, graph=True), expected)


@pytest.mark.parametrize(
    "layer", [layer for layer in LAYERS if layer.name.endswith("Attention")], ids=lambda layer: layer.name
)
def test_who_needs_no_weights_gets_none_on_either_path(backend: SimpleNamespace, layer: Layer):
    (case,) = all_cases().select(f"{layer.name}-fully_masked")
    inputs, parameters = case.at("float64")
    dropout = {"dropout": 0.5} if any(option.name == "dropout" for option in layer.options) else {}
    made = backend.runtime.build(getattr(backend.package, layer.name), {**case.config, **dropout}, "float64")
    backend.package.set_parameters(made, parameters)
    given = {name: backend.runtime.from_numpy(array) for name, array in inputs.items() if "dropout" not in name}
    expected = backend.runtime.to_numpy(made(**given)[0])
    for path in ("blocked", "plain"):
        with on_path(backend, path):
            context, weights = made(**given, need_weights=False)
        assert weights is None
        np.testing.assert_allclose(backend.runtime.to_numpy(context), expected, rtol=1e-13, atol=1e-14, err_msg=path)
