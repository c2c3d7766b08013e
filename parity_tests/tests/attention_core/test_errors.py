"""Refusals: the same class and the same words in the reference and in every backend, before any arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_core import errors, reference
from attention_core.errors import AttentionError, DtypeError, OptionError, ParameterError, ShapeError
from attention_core.operators.masking import MASKED_SOFTMAX
from parity_tests.tests.attention_core.refusals_of_functions import FUNCTIONS
from parity_tests.tests.attention_core.refusals_of_layers import ADDITIVE, CONFIGS, CONSTRUCTORS, LAYERS


def entries() -> Iterator[Any]:
    """Layer, its options, call, class and words of each refusal; a function has no layer."""
    for table in (FUNCTIONS, LAYERS):
        for kind, call, words, *other in ((kind, *row) for kind, rows in table.items() for row in rows):
            name = words.partition(":")[0].partition(".")[0] if table is LAYERS else ""
            made = other[0] if other else (name, CONFIGS.get(name, {}))
            yield pytest.param(*made, call, words, kind, id=words.partition(",")[0])


REFUSALS = pytest.mark.parametrize(("layer", "config", "call", "words", "kind"), list(entries()))


def refused(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(AttentionError) as raised:
        call()
    assert (type(raised.value), str(raised.value)) == (kind, words)


@REFUSALS
def test_the_reference_refuses(layer: str, config: dict[str, Any], call: Any, words: str, kind: type[AttentionError]):
    target = getattr(reference, layer)(**config) if layer else reference
    standard = np.float64 if layer else np.float32  # a layer of the reference has no other dtype

    def array(*shape: int, dtype: Any = standard, fill: int = 0) -> np.ndarray:
        return np.full(shape, fill, dtype)

    words = words.replace("float32, expected an integer", f"{np.dtype(standard).name}, expected an integer")
    refused(lambda: call(target, array), kind, words)


@REFUSALS
def test_a_backend_refuses(
    backend: SimpleNamespace, layer: str, config: dict[str, Any], call: Any, words: str, kind: type[AttentionError]
):
    package = backend.package
    target = backend.runtime.build(getattr(package, layer), config, "float32") if layer else package

    def array(*shape: int, dtype: Any = np.float32, fill: int = 0) -> Any:
        return backend.runtime.from_numpy(np.full(shape, fill, dtype))

    refused(lambda: call(target, array), kind, words)


@pytest.mark.parametrize(("config", "words"), CONSTRUCTORS, ids=[words.partition(",")[0] for _, words in CONSTRUCTORS])
def test_a_constructor_refuses(backend: SimpleNamespace, config: dict[str, Any], words: str):
    layer = words.partition(":")[0]
    refused(lambda: backend.runtime.build(getattr(backend.package, layer), config, "float32"), OptionError, words)
    refused(lambda: getattr(reference, layer)(**config), OptionError, words)


def test_an_unknown_option_is_pythons_own_refusal(backend: SimpleNamespace):
    with pytest.raises(TypeError, match=r"AdditiveAttention.__init__\(\) got an unexpected keyword argument 'rate'"):
        backend.package.AdditiveAttention(**ADDITIVE, rate=0.5)
    with pytest.raises(TypeError, match=r"scaled_dot_score\(\) got an unexpected keyword argument 'scael'"):
        backend.package.scaled_dot_score(None, None, scael=1.0)


def test_a_layer_refuses_another_floating_type(backend: SimpleNamespace):
    layer = backend.runtime.build(backend.package.AdditiveAttention, ADDITIVE, "float32")
    arrays = [backend.runtime.from_numpy(np.zeros(shape)) for shape in ((2, 5, 9), (2, 7, 10), (2, 7, 6))]
    words = (
        "AdditiveAttention: queries is float64 but the layer is float32. Nothing is cast silently: cast one of the two."
    )
    refused(lambda: layer(*arrays), DtypeError, words)


def test_parameters_that_do_not_fit_are_named(backend: SimpleNamespace):
    layer = backend.runtime.build(backend.package.AdditiveAttention, ADDITIVE, "float32")
    good = backend.package.get_parameters(layer)
    for arrays, words in (
        (
            {"W_q": good["W_q"], "w_v": good["w_v"], "bias": good["w_v"]},
            "the arrays are not this layer's (missing: W_k; unknown: bias). It has W_q, W_k, w_v.",
        ),
        (
            {**good, "W_k": good["W_k"].T},
            "W_k has shape (10, 8), expected (8, 10). The transpose would fit: canonical matrices are (outputs, "
            "inputs).",
        ),
        ({**good, "w_v": good["w_v"][1:]}, "w_v has shape (7,), expected (8,)."),
        (
            {**good, "W_q": good["W_q"].astype(np.float64)},
            "W_q is float64, expected float32. Nothing is cast silently: cast the arrays first, or make the layer "
            "with their dtype.",
        ),
    ):
        call = partial(backend.package.set_parameters, layer, arrays)
        refused(call, ParameterError, f"AdditiveAttention: {words}")
    after = backend.package.get_parameters(layer)
    assert all(np.array_equal(after[name], good[name]) for name in good), "a refusal must lose nothing"


def test_a_size_that_is_unknown_while_tracing_fits_anything():
    from attention_core.operators.scoring import DOT_SCORE

    unknown = SimpleNamespace(shape=(None, 5, None), dtype=np.dtype("float32"))
    sizes = errors.check(DOT_SCORE, queries=unknown, keys=np.zeros((2, 7, 4), np.float32))
    assert sizes == {"batch": 2, "queries": 5, "keys": 7, "features": 4}


@pytest.mark.parametrize("name", ["float32", "float64", "int32", "bool"])
def test_dtypes_have_one_name(name: str):
    kinds = [np.dtype(name), np.dtype(name).type, SimpleNamespace(name=name)]
    assert {errors.dtype_name(kind) for kind in kinds} == {name}


@pytest.mark.parametrize("lens", [[1.5, 2.0], [[1, 2], [1]], [True, False], [1, [2]], ["1", "2"]])
def test_a_list_of_lengths_has_whole_numbers_in_rows_of_one_size(lens: list[Any]):
    with pytest.raises(ShapeError, match=r"^masked_softmax: valid_lens is a list, expected one whole number for each"):
        errors.check(MASKED_SOFTMAX, scores=np.zeros((2, 3, 4)), valid_lens=lens)
