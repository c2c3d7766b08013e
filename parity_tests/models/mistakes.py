"""What an error looks like: a constant factor, a shift, one head; and known mistakes by their names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parity_tests.models.difference import Difference
from parity_tests.models.formulas import (
    ACTIVATIONS,
    MOST_HEADS,
    Array,
    attentions,
    recurrent_outputs,
    rotations,
    sinusoids,
)
from parity_tests.models.manners import CLOSE, factor_between, gradient_manners, is_close, manners, name_factor
from parity_tests.models.parameters import Pairing
from parity_tests.models.sides import Side

MOST_ENTRIES = 200_000
"""The number of values of the first rows that explanations are tried on."""

ROUNDING = 1e-14
"""The rounding of a variance, beside its size."""


def explain(difference: Difference, actual: Side, expected: Side, pairing: Pairing) -> tuple[list[str], list[str]]:
    """The mistakes that the error looks like, most specific first, and what manner of error it is if it has no name.

    Settings and parameters that differ come before all.
    """
    one = np.asarray(difference.actual_array.array, np.float64)
    other = np.asarray(difference.expected_array.array, np.float64)
    found = list(_settings(difference)) + list(_parameters(difference, actual, expected, pairing))
    if one.size != other.size:
        return [*found, f"the shape is {one.shape}, expected {other.shape}"], []
    one = one.reshape(other.shape)
    if difference.kind == "gradient":
        found += gradient_manners(one, other)
        return found, [] if found else list(manners(one, other))
    known = _Known(difference, expected)
    with np.errstate(all="ignore"):
        named = list(dict.fromkeys(name for guess in GUESSES for name in guess(one, other, known)))
    return [*found, *named], [] if named else list(_inside(one, other)) or list(manners(one, other))


class _Known:
    """What an explanation can use: arrays that agree, and the parameters of the call on both sides."""

    def __init__(self, difference: Difference, expected: Side) -> None:
        self.names: list[str] = []
        self.inputs: list[Array] = []
        """Floating arrays, each once, the nearest first."""
        self.others: list[Array] = []
        seen = set()
        for name, given in difference.given:
            if given.moments in seen or given.size > MOST_ENTRIES:
                continue
            seen.add(given.moments)
            if given.is_floating:
                self.names.append(name)
                self.inputs.append(np.asarray(given.array, np.float64))
            else:
                self.others.append(np.asarray(given.array))
        calls = [difference.expected, *filter(None, [difference.before, difference.parent])]
        self.parameters = {
            name: expected.arrays[name] for call in calls for name in call.parameters if name in expected.arrays
        }
        self.every = expected.arrays
        self.is_gap = difference.kind == "input"


# ------------------------------------------------------------------------------------------------ settings, parameters


def _settings(difference: Difference) -> Iterator[str]:
    """Yield attributes of both calls that have the same name and other values."""
    one, other = difference.actual.settings, difference.expected.settings
    for name in one:
        if name in other and one[name] != other[name] and name not in ("name", "training"):
            yield f"its {name} is {one[name]!r}, expected {other[name]!r}"


def _parameters(difference: Difference, actual: Side, expected: Side, pairing: Pairing) -> Iterator[str]:
    """Yield the parameters and buffers of the call that are other arrays on the two sides."""
    path = difference.expected.path
    for pair in pairing.pairs:
        for name, given in pair.to_expected(actual.arrays).items():
            array = expected.arrays[name]
            inside = name.startswith(f"{path}.") if path else "." not in name
            if not (inside or name in difference.expected.parameters) or array.dtype.kind != "f":
                continue
            if not is_close(given, array):
                transposed = array.ndim == 2 and array.shape[0] == array.shape[1] and is_close(given.T, array)
                manner = "transposed" if transposed else next(manners(given, array), "another array")
                yield f"{' + '.join(pair.actual)} is {manner}, compared with {name}"
    for name in pairing.only_expected:
        if name in difference.expected.parameters:
            yield f"{name} has no counterpart"
    for name in pairing.only_actual:
        if name in difference.actual.parameters:
            yield f"{name} has no counterpart"


# ------------------------------------------------------------------------------------------------ guesses by formula


def _activation(one: Array, other: Array, known: _Known) -> Iterator[str]:
    for x in known.inputs:
        if x.size != other.size or x.size > MOST_ENTRIES:
            continue
        x = x.reshape(other.shape)
        yield from _two(one, other, {name: function(x) for name, function in ACTIVATIONS.items()})


def _inside(one: Array, other: Array) -> Iterator[str]:
    """What a layer computes of the expected output, such as an activation that is part of it on the actual side."""
    if other.size <= MOST_ENTRIES:
        with np.errstate(all="ignore"):
            applied = {name: function(other) for name, function in ACTIVATIONS.items()}
        yield from (
            f"{name} of the expected output, inside of the layer" for name in applied if is_close(applied[name], one)
        )


def _two(one: Array, other: Array, candidates: Mapping[str, Array], words: str = "{}, expected {}") -> Iterator[str]:
    """Yield the names of the candidates that both arrays are, if they are two."""
    of_one = next((name for name, array in candidates.items() if is_close(array, one)), None)
    of_other = next((name for name, array in candidates.items() if is_close(array, other)), None)
    if of_one is not None and of_other is not None and of_one != of_other:
        yield words.format(of_one, of_other)


def _normalization(one: Array, other: Array, known: _Known) -> Iterator[str]:
    """The epsilon, the mean and the divisor of a normalization over the last axis."""
    width = other.shape[-1] if other.ndim else 0
    vectors = [array for array in known.parameters.values() if array.shape == (width,) and array.all()]
    gains = [np.ones(width), *vectors]
    biases = [np.zeros(width), *(array for array in known.parameters.values() if array.shape == (width,))]
    for x, gain, bias in itertools.product(known.inputs, gains, biases):
        if x.shape != other.shape or width < 2:
            continue
        of_one, of_other = (_epsilon(x, (array - bias) / gain) for array in (one, other))
        if of_one and of_other and of_one != of_other:
            yield f"{of_one}, expected {of_other}"
            return


def _epsilon(x: Array, normalized: Array) -> str:
    """What kind of normalization of the rows of x this is, with its epsilon; nothing if it is none."""
    size = (normalized**2).sum(-1)
    for title, center, freedom in (
        ("", x.mean(-1, keepdims=True), 0),
        ("RMS norm, ", np.zeros(()), 0),
        ("variance over n - 1, ", x.mean(-1, keepdims=True), 1),
    ):
        squares = ((x - center) ** 2).sum(-1)
        scale, variance = squares / size, squares / (x.shape[-1] - freedom)
        if not is_close((x - center) / np.sqrt(scale)[..., None], normalized):
            continue
        for words, epsilons in (("", scale - variance), (" outside of the root", np.sqrt(scale) - np.sqrt(variance))):
            epsilon = float(np.median(epsilons))
            if epsilon > -ROUNDING and np.abs(epsilons - epsilon).max() < max(
                CLOSE * epsilon, ROUNDING * variance.max()
            ):
                return f"{title}epsilon {max(epsilon, 0.0):.4g}{words}"
    return ""


def _linear(one: Array, other: Array, known: _Known) -> Iterator[str]:
    """A transposed matrix, and a bias that is dropped or added twice."""
    width = other.shape[-1] if other.ndim else 0
    for name, vector in known.every.items() if len(known.every) < 4000 else known.parameters.items():
        if vector.shape == (width,) and width > 1 and vector.any():
            for factor, words in ((-1.0, "is missing"), (1.0, "is added once more")):
                if is_close(one - other, np.broadcast_to(factor * vector, other.shape)):
                    yield f"{name} {words}"
    for x, (name, matrix) in itertools.product(known.inputs, known.parameters.items()):
        if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] == x.shape[-1] == width and x.size <= MOST_ENTRIES:
            straight, turned = x @ matrix, x @ matrix.T
            if straight.shape == other.shape and any(
                is_close(one - other, sign * (turned - straight)) for sign in (1.0, -1.0)
            ):
                yield f"{name} is transposed"


def _sums(one: Array, other: Array, known: _Known) -> Iterator[str]:
    """A term of a sum that is missing or scaled otherwise, such as a residual connection or an embedding."""
    for name, x in zip(known.names, known.inputs, strict=True):
        if x.shape != other.shape or not x.any():
            continue
        if is_close(one, x) and not is_close(other, x):
            yield f"it is {name}, unchanged"
            continue
        squares = float((x * x).sum())
        factor = float(((one - other) * x).sum()) / squares
        if abs(factor) < CLOSE or not is_close(one - other, factor * x):
            continue
        less, more = name_factor(1.0 - factor, x.shape), name_factor(1.0 + factor, x.shape)
        if abs(factor + 1.0) < CLOSE:
            yield f"{name} is not added: a residual connection is missing"
        elif abs(factor - 1.0) < CLOSE:
            yield f"{name} is added once more"
        elif "√" in less:
            yield f"{name} counts once, expected {less} times"
        elif "√" in more:
            yield f"{name} counts {more} times, expected once"
        else:
            yield f"{name} counts {factor:+.6g} times more than expected"


def _tokens(one: Array, other: Array, known: _Known) -> Iterator[str]:
    """Embeddings of other tokens: positions or ids that are shifted, a padding id."""
    for name, table in known.every.items():
        if table.ndim != 2 or other.ndim < 2 or table.shape[-1] != other.shape[-1] or len(table) > 60_000:
            continue
        rows = other.reshape(-1, other.shape[-1])[:64], one.reshape(-1, other.shape[-1])[:64]
        right, read = (_rows_of(table, part) for part in rows)
        if right is not None and read is not None and not np.array_equal(right, read):
            shift = set((read - right).tolist())
            if len(shift) == 1:
                yield f"rows of {name} are read {shift.pop():+d} further on"
            else:
                wrong = sorted(set(right[right != read].tolist()))
                yield f"other rows of {name} are read, in place of {', '.join(map(str, wrong[:4]))}"
    for ids in known.others:
        if ids.ndim and other.shape[: ids.ndim] == ids.shape and ids.dtype.kind in "iu":
            wrong = np.abs(one - other).reshape(*ids.shape, -1).max(-1) > CLOSE * (
                np.abs(other).max(initial=0.0) or 1.0
            )
            tokens = set(ids[wrong].tolist())
            if len(tokens) == 1 and not (ids[~wrong] == next(iter(tokens))).any():
                zeros = "; they are 0" if not one[wrong].any() else ""
                yield f"only entries of token {tokens.pop()} differ{zeros}: another padding id"


def _rows_of(table: Array, rows: Array) -> Array | None:
    """The indices of rows of a table; None if they are no rows of it."""
    scale = float(np.abs(table).max(initial=0.0)) or 1.0
    indices = []
    for row in rows:
        distance = np.abs(table - row).max(axis=1)
        if distance.min(initial=np.inf) > CLOSE * scale:
            return None
        indices.append(int(distance.argmin()))
    return np.array(indices)


def _positions(one: Array, other: Array, known: _Known) -> Iterator[str]:
    """The layout, base and first position of sinusoids, added or by themselves, and of rotations."""
    if other.ndim < 2:
        return
    steps, width = other.shape[-2:]
    if width % 2 or not steps:
        return
    tables = {"none": np.zeros((steps, width)), **dict(sinusoids(steps, width))}
    apart = (one - other).reshape(-1, steps, width)
    if is_close(apart, np.broadcast_to(apart[:1], apart.shape)):  # whatever they are added to
        for name, table in tables.items():
            expected = next((title for title, read in tables.items() if is_close(apart[0] + read, table)), None)
            if expected is not None and name != expected:
                yield f"sinusoids: {name}, expected {expected}"
                return
    for x, axis in itertools.product(known.inputs, range(other.ndim - 1)):
        if x.shape == other.shape:
            last = (np.moveaxis(array, axis, -2) for array in (one, other, x))
            yield from _two(next(last), next(last), dict(rotations(next(last))), "rotary positions: {}, expected {}")
    if other.shape[-1] * 2 >= 4:
        bases = [_base_of(array) for array in (one, other)]
        if None not in bases and abs(bases[0] - bases[1]) > 1e-3 * bases[1]:  # type: ignore[operator]
            yield f"positions: base {bases[0]:.6g}, expected {bases[1]:.6g}"


def _base_of(array: Array) -> float | None:
    """The base of an array of cosines, such as a rotary table; None if it is none."""
    if array.shape[-2] < 2 or np.abs(array).max(initial=0.0) > 1.0 + 1e-9:
        return None
    second = array.reshape(-1, *array.shape[-2:])[0][1]
    angles = np.arccos(np.clip(second, -1.0, 1.0))
    width = array.shape[-1] if is_close(second[: second.size // 2], second[second.size // 2 :]) else 2 * array.shape[-1]
    if abs(angles[0] - 1.0) > 1e-6 or width < 4 or angles[1] <= 0.0:
        return None
    return float(angles[1] ** (-width / 2))


def _factor(one: Array, other: Array, known: _Known) -> Iterator[str]:
    factor = factor_between(one, other)
    if factor is not None:
        yield f"it is {name_factor(factor, other.shape)} times what is expected"


def _attention(one: Array, other: Array, known: _Known) -> Iterator[str]:
    """Attention of the last three arrays that agree: scale, masks, their fill, and the order of heads."""
    one, other = _with_heads_joined(one), _with_heads_joined(other)
    if other.ndim != 3 or other.size > MOST_ENTRIES:
        return
    widths = []
    for name, x in zip(known.names, map(_with_heads_joined, known.inputs), strict=True):
        if x.ndim == 3 and name.startswith("the output of"):
            in_one = x.shape[-1] == 3 * other.shape[-1]  # values, keys and queries, the nearest first
            widths += np.split(x, 3, axis=-1)[::-1] if in_one else [x]
    widths = widths[:6]
    near = itertools.permutations(range(min(3, len(widths))), 3)
    for triple in dict.fromkeys((*near, *((i + 2, i + 1, i) for i in range(len(widths) - 2)))):
        queries, keys, values = (widths[index] for index in triple)
        fits = queries.shape[:2] == other.shape[:2] and keys.shape == values.shape
        if not fits or queries.shape[-1] != keys.shape[-1] or keys.shape[-1] != other.shape[-1]:
            continue
        for heads in (heads for heads in range(1, MOST_HEADS + 1) if keys.shape[-1] % heads == 0):
            candidates = attentions(queries, keys, values, heads, known.others)
            named = list(_two(one, other, candidates, "attention: {}, expected {}"))
            if named:
                yield from named
                return
            if any(is_close(array, other) for array in candidates.values()):
                return


def _with_heads_joined(x: Array) -> Array:
    """An array (batch, steps, heads, features) with the features of all heads together."""
    return x.reshape(*x.shape[:2], -1) if x.ndim == 4 else x


def _order(one: Array, other: Array, known: _Known) -> Iterator[str]:
    """The same values in another order: of an axis, of heads, shifted by a step."""
    for axis in range(other.ndim):
        size = other.shape[axis]
        a, b = np.moveaxis(one, axis, 0), np.moveaxis(other, axis, 0)
        for shift in (1, -1):
            kept = (a[1:], b[:-1]) if shift == 1 else (a[:-1], b[1:])
            if size > 2 and is_close(*kept):
                yield f"axis {axis} is shifted by {-shift:+d}"
                return
        for block in (size // count for count in range(2, min(size, 64) + 1) if size % count == 0):
            parts = a.reshape(-1, block, *a.shape[1:]), b.reshape(-1, block, *b.shape[1:])
            order = _permutation(*parts)
            if order is not None:
                what = f"blocks of {block}" if block > 1 else "entries"
                yield f"{what} of axis {axis} are in another order: {', '.join(map(str, order[:12]))}"
                return


def _permutation(one: Array, other: Array) -> list[int] | None:
    """The index in another array of each entry of the first axis; None if they are not the same ones."""
    if len(one) > 512:
        return None
    order = []
    for entry in one:
        scale = float(np.abs(other).max(initial=0.0)) or 1.0
        distances = np.abs(other - entry).reshape(len(other), -1).max(axis=1)
        index = int(distances.argmin())
        if distances[index] > CLOSE * scale or index in order:
            return None
        order.append(index)
    return order if order != sorted(order) else None


def _gates(one: Array, other: Array, known: _Known) -> Iterator[str]:
    """The order of the gates of an LSTM or GRU, whose outputs are computed with each."""
    hidden = other.shape[-1] if other.ndim else 0
    inputs = [x for x in known.inputs if x.ndim == 3 and x.shape[:2] == other.shape[:2]]
    for kind, gates in (("LSTM", 4), ("GRU", 3)):
        parameters = [array for array in known.parameters.values() if gates * hidden in array.shape]
        if known.is_gap or not inputs or len(parameters) < 2:
            continue
        for order in itertools.permutations(range(gates)):
            outputs = recurrent_outputs(kind, inputs[0], hidden, parameters, order)
            if order != tuple(range(gates)) and outputs is not None and is_close(outputs, one):
                yield f"the gates of the {kind} are in another order: {', '.join(map(str, order))}"
                return


def _precision(one: Array, other: Array, known: _Known) -> Iterator[str]:
    """Rounding to fewer bits."""
    size = float(np.abs(other).max(initial=0.0))
    error = float(np.abs(one - other).max(initial=0.0))
    bits = np.ascontiguousarray(one, np.float64).view(np.int64)
    for name, eps, zeros in (("bfloat16", 2.0**-8, 45), ("float16", 2.0**-11, 42), ("float32", 2.0**-24, 29)):
        if eps / 64 < error / (size or 1.0) < 4 * eps and not (bits & ((1 << zeros) - 1)).any():
            yield f"its values are those of {name}: it is computed in {name}"
            return


def _flow(one: Array, other: Array, known: _Known) -> Iterator[str]:
    if not one.any() and other.any():
        yield "it is 0 everywhere"


GUESSES: Sequence[Callable[[Array, Array, Any], Iterator[str]]] = (
    _flow,
    _factor,
    _activation,
    _normalization,
    _linear,
    _sums,
    _tokens,
    _positions,
    _attention,
    _gates,
    _order,
    _precision,
)
"""The explanations, in this order."""
