"""Derive from the specification mistakes that show under one condition only: beyond a size, for one layout, twice.

Each function, layer and search has one for each size, coincidence, axis of a mask, type of lengths, memory layout,
state and magnitude that it can meet; in all other cases its answer is right. Only cases that meet the condition can
kill it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import eq, lt

import numpy as np

from attention_core.operators import find
from attention_core.specification import INTEGER, Tensor
from parity_tests.cases import covering
from parity_tests.cases.conditions import FURTHER, conditions, sizes_of
from parity_tests.cases.covering import DIMENSIONS, SEARCHES, Call
from parity_tests.format.call import SECOND, output_names
from parity_tests.format.case import Arrays, Case, is_floating
from parity_tests.format.drawn import inputs_of
from parity_tests.format.expected import expected_values
from parity_tests.format.layouts import LAYOUTS
from parity_tests.format.selection import Cell
from parity_tests.judge.compare import judge
from parity_tests.judge.question import Question
from parity_tests.workers.answers import Answer
from parity_tests.workers.recordings import Recording

CLASSES: Mapping[str, Callable[[int], bool]] = {
    "odd": lambda size: size % 2 == 1 and size > 1,
    "even": lambda size: size % 2 == 0 and size > 0,
    "power_of_two": lambda size: size > 1 and size & (size - 1) == 0,
    "beside_a_power": lambda size: size > 2 and 0 in ((size - 1) & (size - 2), (size + 1) & size),
}
SMALL = ("dot_score", "scaled_dot_score", "additive_score", "location_score", "gaussian_score")
"""Functions whose outputs are as small as their inputs."""
BEYOND = (4, 16, 64, 1024)
"""Where vector registers, blocks and tables of fixed size end."""


@dataclass(frozen=True)
class Derived:
    """A mistake: the function or layer that has it, the dimension of its condition, and the wrong answer.

    wrong returns the arrays of a right answer that it changes; none where the condition does not hold.
    """

    scope: str
    dimension: str
    name: str
    wrong: Callable[[Case, str, Arrays], Arrays]


def derived_mutants(dimensions: Iterable[str] = DIMENSIONS) -> Iterator[Derived]:
    """Derive every mistake of those dimensions; the core kills those of `DIMENSIONS`."""
    chosen = set(dimensions)
    scopes: dict[str, list[Call]] = defaultdict(list)
    for call in covering.calls():
        if not call.covered_by_call:
            scopes[call.kin].append(call)
    for scope, calls in scopes.items():
        made: dict[tuple[str, str], Derived] = {}
        for call in calls:
            for dimension, name, wrong in _of(call):
                made.setdefault((dimension, name), Derived(scope, dimension, name, wrong))
            for one in conditions(call) if chosen & {*FURTHER} else ():
                made[one.dimension, f"{call.name} {one.name}"] = Derived(
                    call.name, one.dimension, one.name, _if(one.holds)
                )
        yield from (mistake for mistake in made.values() if mistake.dimension in chosen)


Wrong = Callable[[Case, str, Arrays], Arrays]


def _of(call: Call) -> Iterator[tuple[str, str, Wrong]]:
    if call.method == "extend":  # `attend` has the rest
        yield from _of_sizes({"steps": call.sizes["steps"]})
        yield from _of_broadcast(call.extension)
        return
    yield from _of_sizes(call.sizes)
    for first, second in call.coincidences:
        yield "coincidences", f"{first}_as_many_as_{second}", _equal(first, second)
    yield from _of_broadcast(call.inputs)
    if "valid_lens" in call.masks:
        for kind in INTEGER:
            yield "masks", f"lengths_of_{kind}", _lengths(partial(_is_type, kind))
        yield "masks", "lengths_all_alike", _lengths(lambda lens: lens.size > 1 and lens.min() == lens.max() > 0)
        yield "masks", "lengths_of_one", _lengths(lambda lens: bool((lens == 1).all()))
    several = [tensor for tensor in call.inputs if tensor.axes]
    for layout in LAYOUTS if several else ():
        if layout == "expanded" and not call.floating:
            continue
        yield "layout", f"{layout}_input", _laid_out(layout)
    if {"keys", "values"} <= {tensor.name for tensor in call.inputs}:
        yield "layout", "gradient_of_one_array_twice", _shared_gradient
    yield "state", "asked_again", _if(lambda case: bool(case.again), _other_bits)
    if call.computes and call.method not in (*SEARCHES, "start"):
        yield "state", "second_call_answers_as_the_first", _first_for_second
        yield "state", "second_call_overwrites_the_first", _second_for_first
        if call.floating and call.outputs:
            yield "state", "differentiates_the_newest_call", _newest_gradient
    averages = "value_features" in call.sizes  # what has a bias is not small where its inputs are
    if averages or call.entry.name in SMALL:
        yield "magnitude", "flushed_below_1e-20", _with_zeros_for_small
        yield "magnitude", "single_to_1e-6", _absolute_error
    linear = averages or call.entry.name in (*SMALL, "attention_pooling")
    if linear and covering.scale_bounds(call, "huge", "float64"):
        yield "magnitude", "clamped_beyond_1e20", _with_bounds


def _of_sizes(sizes_of_axes: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, str, Wrong]]:
    for axis, sizes in sizes_of_axes.items():
        for most in BEYOND:
            if most < max(sizes):
                yield "sizes", f"{axis}_beyond_{most}", _axis(axis, partial(lt, most))
        for kind, holds in CLASSES.items():
            if any(map(holds, sizes)):
                yield "sizes", f"{axis}_{kind}", _axis(axis, holds)
        for size in sizes:
            if 0 < size <= 8:
                yield "sizes", f"{axis}_of_{size}", _axis(axis, partial(eq, size))


def _of_broadcast(tensors: Iterable[Tensor]) -> Iterator[tuple[str, str, Wrong]]:
    for tensor in filter(lambda tensor: tensor.broadcast, tensors):
        for axis in (axis.removesuffix("?") for axis in tensor.axes if axis != "one"):
            yield "masks", f"{tensor.name}_with_one_of_{axis}", _mask_of_one(tensor.name, axis)


# ------------------------------------------------------------------------------------------------ conditions


def _if(holds: Callable[[Case], bool], change: Callable[[str, Arrays], Arrays] | None = None) -> Wrong:
    return lambda case, dtype, answer: (change or _off_by_half)(dtype, _outputs(case, answer)) if holds(case) else {}


def _axis(axis: str, holds: Callable[[int], bool]) -> Wrong:
    return _if(lambda case: holds(sizes_of(case).get(axis, 0)))


def _equal(first: str, second: str) -> Wrong:
    return _if(lambda case: sizes_of(case).get(first, 0) == sizes_of(case).get(second, 1) > 1)


def _laid_out(layout: str) -> Wrong:
    return _if(lambda case: layout in case.layouts.values())


def _is_type(name: str, lens: np.ndarray) -> bool:
    return lens.dtype.name == name


def _lengths(holds: Callable[[np.ndarray], bool]) -> Wrong:
    return _if(lambda case: "valid_lens" in case.inputs and holds(case.inputs["valid_lens"]))


def _mask_of_one(name: str, axis: str) -> Wrong:
    def holds(case: Case) -> bool:
        mask = case.inputs.get(name)
        if mask is None:
            return False
        if case.drawn is not None:
            return axis in case.drawn.ones and case.drawn.all_sizes.get(axis, 1) > 1
        tensor = next(tensor for tensor in inputs_of(find(case.operator), case.method) if tensor.name == name)
        layout = next((axes for axes in tensor.layouts if len(axes) == mask.ndim), ())
        return dict(zip(layout, mask.shape, strict=False)).get(axis, 0) == 1 < sizes_of(case).get(axis, 1)

    return _if(holds)


# ------------------------------------------------------------------------------------------------ what is wrong


def _outputs(case: Case, answer: Arrays) -> Arrays:
    return {name: answer[name] for name in output_names(case.operator, case.method, case.options, case.twice)}


def _off_by_half(dtype: str, answer: Arrays) -> Arrays:
    """The first output, off by half of its largest entry."""
    name, array = next(iter(answer.items()))
    if not is_floating(array):
        return {name: ~array if array.dtype.kind == "b" else array + 1}
    numbers = array.astype(np.float64)
    numbers = np.where(np.isfinite(numbers), numbers, 0.0)
    return {name: (numbers + 0.5 * (np.abs(numbers).max(initial=0.0) or 1.0)).astype(array.dtype)}


def _other_bits(dtype: str, answer: Arrays) -> Arrays:
    name, array = next(iter(answer.items()))
    return {name: np.nextafter(array, np.float64(2.0)) if is_floating(array) else _off_by_half(dtype, answer)[name]}


def _first_for_second(case: Case, dtype: str, answer: Arrays) -> Arrays:
    return {name: answer[name.removeprefix(SECOND)] for name in answer if name.startswith(SECOND)}


def _second_for_first(case: Case, dtype: str, answer: Arrays) -> Arrays:
    return {name.removeprefix(SECOND): answer[name] for name in answer if name.startswith(SECOND)}


def _newest_gradient(case: Case, dtype: str, answer: Arrays) -> Arrays:
    begin = f"gradient_{SECOND}"
    return {f"gradient_{name.removeprefix(begin)}": answer[name] for name in answer if name.startswith(begin)}


def _shared_gradient(case: Case, dtype: str, answer: Arrays) -> Arrays:
    return {"gradient_keys": 2 * answer["gradient_keys"]} if case.shared and "gradient_keys" in answer else {}


def _changes(change: Callable[[np.ndarray], np.ndarray], answer: Arrays) -> Arrays:
    made = {name: change(array) for name, array in answer.items() if is_floating(array)}
    return {name: array for name, array in made.items() if not np.array_equal(array, answer[name], equal_nan=True)}


def _with_zeros_for_small(case: Case, dtype: str, answer: Arrays) -> Arrays:
    return _changes(lambda array: np.where(np.abs(array) < 1e-20, np.zeros_like(array), array), answer)


def _with_bounds(case: Case, dtype: str, answer: Arrays) -> Arrays:
    wide = answer if dtype in ("float64", "float32") else {}
    return _changes(lambda array: np.clip(array, array.dtype.type(-1e20), array.dtype.type(1e20)), wide)


def _absolute_error(case: Case, dtype: str, answer: Arrays) -> Arrays:
    """The error of an approximation that is good to 1e-6."""
    single = _outputs(case, answer) if dtype == "float32" else {}
    return _changes(lambda array: array + np.float32(1e-6), single)


# ------------------------------------------------------------------------------------------------ killed or not


def killers(cells: Iterable[Cell], mistakes: Iterable[Derived], first: bool = False) -> dict[Derived, set[str]]:
    """The cells that kill each mutant, or the first of them alone; it survives if there are none."""
    scopes: dict[str, list[Derived]] = defaultdict(list)
    for mistake in mistakes:
        scopes[mistake.scope].append(mistake)
    killers: dict[Derived, set[str]] = {mistake: set() for members in scopes.values() for mistake in members}
    for cell in cells:
        call = Call(find(cell.case.operator), cell.case.method)
        alive = [one for one in (*scopes[call.kin], *scopes[call.name]) if not (first and killers[one])]
        for mistake in _killed_by(cell, alive):
            killers[mistake].add(cell.key)
    return killers


def _killed_by(cell: Cell, mistakes: Sequence[Derived]) -> Iterator[Derived]:
    """The mutants that the cell kills."""
    if not mistakes:
        return
    case, dtype = cell
    question, recording, right = Question(cell), Recording("derived", "cpu"), expected_values(case, dtype)
    with np.errstate(over="ignore"):
        floating = case.answer_dtype(dtype)
        right = {name: array.astype(floating) if is_floating(array) else array for name, array in right.items()}
    recording.answers[cell.key] = Answer()
    if case.again:
        recording.cells[f"{case.again}/{dtype}"] = right
    for mistake in mistakes:
        with np.errstate(all="ignore"):
            wrong = mistake.wrong(case, dtype, right)
        recording.cells[cell.key] = {**right, **wrong}
        if wrong and any(verdict.red for verdict in judge(question, recording)):
            yield mistake
