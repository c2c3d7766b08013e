"""The tolerances as an assertion, for tests of other projects: two arrays, and what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_core.errors import dtype_name
from attention_core.operators import find
from attention_core.specification import FLOATING, Layer
from backends.weights.configs import config_of
from parity_tests.format.call import output_names
from parity_tests.format.case import FULL, Case
from parity_tests.format.expected import in_memory
from parity_tests.judge.compare import compare
from parity_tests.judge.condition import condition_of
from parity_tests.judge.pair import Quantity, Spread
from parity_tests.judge.tolerances import entry_tolerance_of, tolerance_of
from parity_tests.judge.verdict import Verdict

MEASURED = 16
"""The number of entries of a gradient whose condition is measured."""

CASE = "assert_parity"
"""The name of the case: tolerances of single cases do not apply."""


def assert_parity(
    actual: Any,
    expected: Any,
    *,
    operator: str,
    quantity: str,
    dtype: str | None = None,
    beside: Any = None,
    inputs: Mapping[str, Any] | None = None,
    cotangents: Mapping[str, Any] | None = None,
) -> None:
    """Assert that an array is what the specification gives, within the tolerance of that quantity.

    max|actual - expected| <= eps(dtype) · tolerance · max|expected|

    NaN, inf and an array of zeros have to be where they are expected. Weights of a softmax, and some scores, are also
    compared entry by entry. The tolerances are those of the parity run, each with the largest measured error. They are
    those of well-conditioned arrays: with inputs, what rounding does to these inputs is measured where an error exceeds
    the tolerance, and allowed (docs/tolerances.md).

    Args:
        actual: the array to test, of any framework that NumPy can read
        expected: the same in float64, if possible, such as from attention_core.reference
        operator: name of the function or layer in the specification, such as "DotProductAttention"
        quantity: name of its output, such as "context", or gradient_<argument or parameter>
        dtype (default None): floating type of the arithmetic, if actual has been cast to a wider one
        beside (default None): for a quantity that is 0 up to rounding, the expected array whose size its errors have
        inputs (default None): the arrays of the call by name, its options, and for a layer also the constructor's
            arguments and the canonical parameters
        cotangents (default None): for a gradient with inputs, what the outputs were multiplied with, by their names
    Raises:
        AssertionError: an entry, the shape or the dtype is wrong; the message has the entry, the error, the tolerance
            and its reason
        KeyError: the specification has no such operator
        ValueError: the operator has no such quantity, the tolerance needs another array beside this one, or a gradient
            its cotangents
        AttentionError: the inputs do not fit the operator
    Example:
        arrays = {"queries": queries, "keys": keys, "values": values}
        assert_parity(context, expected, operator="DotProductAttention", quantity="context", inputs=arrays)
    """
    _check_quantity(operator, quantity)
    array, reference = _as_numpy("actual", actual), _as_numpy("expected", expected)
    if dtype_name(reference.dtype) in FLOATING:
        reference = reference.astype(np.float64)
    dtype = dtype or (array.dtype.name if dtype_name(array.dtype) in FLOATING else "float64")
    tolerance = tolerance_of(operator, f"{operator}-{CASE}", dtype, quantity)
    if tolerance.beside and beside is None:
        raise ValueError(
            f"{operator}: {quantity} is 0 up to rounding, so its errors have the size of "
            f"{tolerance.beside_of(quantity)}: pass the expected one as beside."
        )
    of_entry = entry_tolerance_of(operator, f"{operator}-{CASE}", dtype, quantity)
    other = None if beside is None else _as_numpy("beside", beside)
    wider = FULL[: FULL.index(dtype)] if dtype in FULL else FULL  # NumPy reads no bfloat16 of PyTorch
    gradient_of = quantity.removeprefix("gradient_")
    if inputs is not None and gradient_of != quantity and cotangents is None:
        raise ValueError(f"{operator}: {quantity} depends on what the outputs were multiplied with: pass cotangents.")
    case = None if inputs is None else _case_of(operator, inputs)
    largest = {gradient_of: np.argsort(-np.abs(reference.reshape(-1)), kind="stable")[:MEASURED]}

    def spread() -> Spread | None:
        if case is None:
            return None
        with in_memory():
            measured = condition_of(case, dtype, entries=largest, factors=_factors(case, cotangents or {}))
        return measured.spread_of(quantity)

    expectation = Quantity(quantity, dtype, reference, tolerance, of_entry, other, (dtype, *wider), spread)
    blank = Verdict(operator, CASE, "actual", "expected", "", dtype, quantity, "missing")
    verdict = compare(blank, expectation, array, reference)
    if verdict.red:
        unit = f"one eps of {dtype} is {expectation.unit:.3g} here"
        condition = (
            ""
            if verdict.condition is None
            else f"; a nudge of the inputs by one eps moves it by {verdict.condition:.3g}"
        )
        missing = ". It is that of well-conditioned arrays: pass inputs=... to measure these" if case is None else ""
        raise AssertionError(
            f"{operator}: {verdict.reason}; {unit}. Tolerance: {tolerance.reason}{condition}{missing}."
        )


def _case_of(operator: str, arguments: Mapping[str, Any]) -> Case:
    """The call of an operator with these arguments.

    Raises: AttentionError, WeightError if they do not fit it.
    """
    entry = find(operator)
    call = entry.method("call") if isinstance(entry, Layer) else entry
    given = {name: value for name, value in arguments.items() if value is not None}
    names = {tensor.name for tensor in call.inputs}
    inputs = {name: _as_numpy(name, value) for name, value in given.items() if name in names}
    options = {option.name: given[option.name] for option in call.options if option.name in given}
    if not isinstance(entry, Layer):
        return Case(operator, CASE, "A call of a test.", inputs, options, gradients=True)
    made = {option.name: given[option.name] for option in entry.options if option.name in given}
    rest = {name: value for name, value in given.items() if name not in {*inputs, *options, *made}}
    parameters = {name: _as_numpy(name, value) for name, value in rest.items()}
    config = config_of(entry, {name: array.shape for name, array in parameters.items()}, made)
    return Case(operator, CASE, "A call of a test.", inputs, options, "call", config, parameters)


def _factors(case: Case, cotangents: Mapping[str, Any]) -> dict[int, np.ndarray]:
    """The cotangents by the position of their output.

    Raises: ValueError if there is no such output.
    """
    names = output_names(case.operator, case.method, case.options)
    if unknown := [name for name in cotangents if name not in names]:
        raise ValueError(f"cotangents: {case.operator} has no output {unknown[0]!r}; it has {', '.join(names)}")
    return {names.index(name): _as_numpy(name, array) for name, array in cotangents.items()}


def _as_numpy(name: str, array: Any) -> np.ndarray:
    try:
        return np.asarray(array)
    except (TypeError, RuntimeError) as error:
        kind = type(array).__name__
        raise TypeError(
            f"{name} is a {kind} that NumPy cannot read: detach it, or convert it first ({error})"
        ) from error


def _check_quantity(operator: str, quantity: str) -> None:
    """Refuse a quantity that the operator does not have."""
    entry = find(operator)
    methods = entry.methods if isinstance(entry, Layer) else (entry,)
    outputs = [tensor.name for method in methods for tensor in method.outputs]
    inputs = [tensor.name for method in methods for tensor in method.inputs if tensor.kind == "floating"]
    name = quantity.removeprefix("gradient_")
    of_parameter = isinstance(entry, Layer) and quantity != name and _is_parameter(entry, name)
    names = dict.fromkeys([*outputs, *(f"gradient_{name}" for name in inputs)])
    if quantity not in names and not of_parameter:
        parameters = ", or gradient_ and the name of a parameter" if isinstance(entry, Layer) else ""
        raise ValueError(f"{operator} has no quantity {quantity!r}; it has {', '.join(names)}{parameters}")


def _is_parameter(layer: Layer, name: str) -> bool:
    """Whether it is a parameter of the layer itself, or has the dotted name of one inside it."""
    return "." in name or name in {parameter.name for parameter in layer.parameters}
