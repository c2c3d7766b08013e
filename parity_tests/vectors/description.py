"""The description of a test vector as plain data: what is computed, from which arrays, and how answers are compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_core.operators import ENTRIES, find
from attention_core.specification import Layer, Operator, Parameter, Tensor, pattern
from parity_tests.format.call import EARLIER, OPTIMISERS, read_by
from parity_tests.format.call import STEPS as ADDED
from parity_tests.format.case import Case, epsilon, is_floating
from parity_tests.judge.pair import Quantity, smallest_entry
from parity_tests.judge.question import Question
from parity_tests.workers.answers import is_gradient

GRADIENT = "gradient_"
"""The prefix of the quantities that are gradients."""
LISTS = "The arrays parameters.*, gradients.* and clipped.* are lists: one array for each name behind the dot."
STEPS = "The first axis of gradients.* counts steps: each updates the parameters, and the last ones are the answer."

COMPARISON = (
    "Shape and dtype are those given here: nothing is broadcast or cast.",
    "Integers and booleans are equal.",
    "NaN and inf are where the expected array has them, and nowhere else.",
    "exact_zeros: 'all' entries are 0; 'each' entry is 0 whose expected one is; 'none' of them: the tolerance decides.",
    "tolerance: max|answer - expected| <= absolute = n · eps · scale, where eps is that of the dtype, and scale is the "
    "largest finite |expected|, or that of the array `beside` if it is larger.",
    "by_entry: also |answer - expected| <= n · eps · |expected| for each entry, times 1 + max(-ln expected) over the "
    "last axis if `softmax`; numbers below least_normal count as that number.",
    "These are the tolerances of well-conditioned cases: where an error exceeds one, `attention-parity compare` "
    "measures the condition.",
)
"""The checks of `parity_tests.judge.compare`, for those who repeat them in another language."""
DIFFERENTIATED = (
    "gradients/<name> = d L / d inputs/<name>, or parameters/<name>;  L = sum over the entries of all outputs of "
    "cotangents/<output> · outputs/<output>"
)


def answer_name(quantity: str) -> str:
    """The name of a quantity in the files of vectors and of answers."""
    return f"gradients/{quantity.removeprefix(GRADIENT)}" if is_gradient(quantity) else f"outputs/{quantity}"


def quantity_name(answer: str) -> str:
    """The quantity of such a name."""
    kind, _, name = answer.partition("/")
    return f"{GRADIENT}{name}" if kind == "gradients" else name


def to_stored(array: np.ndarray) -> np.ndarray:
    """The array in the dtype of the files: float64, int64 or bool, so that a reader needs no others."""
    return array.astype(np.float64 if is_floating(array) else bool if array.dtype == bool else np.int64)


def description(question: Question, arrays: Mapping[str, np.ndarray], onnx: str) -> dict[str, Any]:
    """Describe a cell, the arrays of its file, and the comparison of its answers; onnx is the folder of its ONNX model.

    Everything that the formula refers to is included, so that nothing else needs to be read.
    """
    case, dtype = question.cell
    entry, called, inner = find(case.operator), calls_of(case), list(_inner(find(case.operator), case.config))
    return {
        "id": question.cell.key,
        "case": case.id,
        "dtype": dtype,
        "shows": case.shows,
        "operator": case.operator,
        "summary": entry.summary,
        "formula": entry.formula,
        "notes": entry.notes,
        "source": entry.source,
        "config": _options(entry, case.config) if isinstance(entry, Layer) else {},
        "options": _options(called[-1], case.options),
        "meanings": {option.name: option.meaning for one in (entry, called[-1]) for option in one.options},
        "calls": [
            {"name": one.name, "arguments": _arguments(one, case), "summary": one.summary, **_statement(one)}
            for one in called
        ],
        "inner_layers": {
            name: {"layer": layer.name, "config": _options(layer, given), **_statement(layer)}
            for name, layer, given in inner
        },
        "definitions": {
            one.name: _statement(one) for one in _definitions([entry, *called, *(layer for _, layer, _ in inner)])
        },
        "same_arrays": dict(case.shared),
        "remarks": list(_remarks(case)),
        "inputs": [
            _array(name, array, case, called)
            for name, array in arrays.items()
            if name.startswith(("inputs/", "parameters/", "cotangents/"))
        ],
        "expected": [
            {**_array(answer_name(name), arrays[answer_name(name)], case, called), **_answer(quantity)}
            for name, quantity in question.quantities.items()
            if answer_name(name) in arrays
        ],
        "gradients": DIFFERENTIATED,
        "comparison": list(COMPARISON),
        "onnx": onnx,
    }


def calls_of(case: Case) -> list[Operator]:
    """The function of a case, or the methods of its layer in the order of the calls, the last of which answers."""
    entry = find(case.operator)
    if isinstance(entry, Operator):
        return [entry]
    method = entry.method(read_by(case.method))
    before = []
    if any(tensor.name.startswith("memory.") for tensor in method.inputs):
        before = [one for one in entry.methods if one.name == f"{entry.name}.prepare"]
        before += [one for one in entry.methods if case.method == "step" and one.name == f"{entry.name}.start"]
        before += [entry.method("extend")] if case.method == "extend" else []
        before += [_earlier_steps(method)] if EARLIER in case.inputs else []
    called = [*before, method]
    called = [one.time_major for one in called] if case.config.get("time_major") else called
    return [_of_a_case(one) for one in called[:-1]] + called[-1:] if case.method == "extend" else called


def _earlier_steps(step: Operator) -> Operator:
    """The steps before that of a case, as one call with all of their tokens."""
    tokens = replace(step.tensors[0], name=EARLIER, axes=("batch", "earlier"))
    summary = "Decode the earlier tokens one by one, each with the state of the one before it."
    return replace(step, summary=summary, tensors=(tokens, *step.tensors[1:]))


def _of_a_case(called: Operator) -> Operator:
    """A call before that of `attend`, by the names of its arrays in a case, and of axes that differ from the last's."""
    prefix = ADDED if called.name.endswith(".extend") else ""
    axes = {"keys": "first_keys"} | ({} if prefix else {"queries": "earlier"})

    def with_axes(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return tuple(
            replace(
                tensor,
                name=tensor.name if "." in tensor.name else prefix + tensor.name,
                axes=tuple(axes.get(axis, axis) for axis in tensor.axes),
            )
            for tensor in tensors
        )

    return replace(called, tensors=with_axes(called.tensors), keyword_tensors=with_axes(called.keyword_tensors))


def _statement(entry: Operator | Layer) -> dict[str, str]:
    """The formula and notes of an operator; of a layer also those of its call, such as what lengths do."""
    stated = {"formula": entry.formula, "notes": entry.notes}
    if isinstance(entry, Layer):
        call = entry.method("call")
        stated |= {"formula_of_call": call.formula, "notes_of_call": call.notes}
    return stated


def _arguments(called: Operator, case: Case) -> list[str]:
    """The arrays of a case that a call takes; others come from the calls before it."""
    return [tensor.name for tensor in called.inputs if tensor.name in {**case.inputs, **case.shared}]


def _options(entry: Operator | Layer, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option with its value."""
    return {option.name: given.get(option.name, option.value) for option in entry.options}


def _inner(
    entry: Operator | Layer, config: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Layer, Mapping[str, Any]]]:
    """The layers inside a layer, at any depth, by the prefix of their parameters."""
    if isinstance(entry, Layer):
        for name, part in entry.inside(entry.sizes(config)).items():
            yield f"{prefix}{name}", part.layer, part.config
            yield from _inner(part.layer, part.config, f"{prefix}{name}.")


def _definitions(of: Sequence[Operator | Layer]) -> Iterator[Operator | Layer]:
    """The operators that formulas and notes refer to, directly or not, and how lengths and a mask combine."""
    waiting, seen = list(of), {one.name.partition(".")[0] for one in of}
    for one in waiting:
        words = set(re.findall(r"\w+", " ".join(_statement(one).values())))
        if isinstance(one, Operator) and {"valid_lens", "mask"} <= {tensor.name for tensor in one.inputs}:
            words.add("attention_mask")
        for entry in ENTRIES:
            if entry.name in words - seen:
                seen.add(entry.name)
                waiting.append(entry)
                yield entry


def _remarks(case: Case) -> Iterator[str]:
    for name, other in case.shared.items():
        yield f"{name} is the same array as {other}, whose gradient is the sum over both."
    if case.operator in (*OPTIMISERS, "clip_by_global_norm"):
        yield LISTS
    if case.operator in OPTIMISERS:
        yield STEPS


def _array(name: str, array: np.ndarray, case: Case, called: Iterable[Operator]) -> dict[str, Any]:
    """The shape, axes and meaning of an array; a list has neither axes nor meaning."""
    kind, _, last = name.partition("/")
    tensors = [tensor for one in called for tensor in (*one.inputs, *one.outputs)]
    if kind in ("outputs", "cotangents"):
        tensors.reverse()  # what the last call returns comes first
    meaning, axes = "", None
    if last in case.parameters and (parameter := _parameter(find(case.operator), case.config, last)):
        meaning, axes = parameter.meaning, parameter.axes
    elif tensor := next((tensor for tensor in tensors if tensor.name == last), None):
        meaning, axes = tensor.meaning, next((some for some in tensor.layouts if len(some) == array.ndim), None)
    if kind in ("gradients", "cotangents"):
        meaning = f"{kind.removesuffix('s')} of {last}"
    return {"name": name, "dtype": array.dtype.name, "shape": array.shape, "axes": axes, "meaning": meaning}


def _parameter(entry: Operator | Layer, config: Mapping[str, Any], name: str) -> Parameter | None:
    """The canonical array of that name, of a layer or of one inside it."""
    if not isinstance(entry, Layer):
        return None
    for prefix, layer, given in _inner(entry, config):
        if name.startswith(f"{prefix}.") and (found := _parameter(layer, given, name.removeprefix(f"{prefix}."))):
            return found
    return next((parameter for parameter in entry.parameters if parameter.name == pattern(name)), None)


def _answer(quantity: Quantity) -> dict[str, Any]:
    """The dtype of an answer, its tolerance with the reason, and what has to be exactly zero."""
    dtype = quantity.dtypes[0]
    if not quantity.floating:
        return {"answer_dtype": dtype, "exact_zeros": "each", "tolerance": None}
    tolerance, by_entry = quantity.tolerance, quantity.by_entry
    return {
        "answer_dtype": dtype,
        "exact_zeros": "all" if quantity.scale == 0.0 else "none" if by_entry is None else "each",
        "tolerance": {
            "absolute": quantity.allowance * quantity.unit,
            "n": quantity.allowance,
            "eps": epsilon(dtype),
            "scale": quantity.scale,
            "beside": answer_name(tolerance.beside_of(quantity.name)) if tolerance.beside else None,
            "reason": tolerance.reason,
            "by_entry": by_entry
            and {
                "n": by_entry.eps,
                "softmax": by_entry.softmax,
                "least_normal": smallest_entry(dtype),
                "reason": by_entry.reason,
            },
        },
    }
