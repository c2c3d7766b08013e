"""What an error looks like: a constant factor, a shift, one head; and known mistakes by their names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parity_tests.models.alignment import Difference
from parity_tests.models.parameters import Pairing
from parity_tests.models.sides import Side

CLOSE = 1e-6
"""By which part of the largest entry an explanation may miss: it explains an error that is far larger."""

MOST_ENTRIES = 200_000
"""The number of values of the first rows that explanations are tried on."""

ROUNDING = 1e-14
"""The rounding of a variance, beside its size."""

BASES = (1e4, 5e5, 1e6, 1e5)

Array = np.ndarray


def explain(difference: Difference, actual: Side, expected: Side, pairing: Pairing) -> list[str]:
    """What the error looks like, most specific first; settings and parameters that differ come before all."""
    one = np.asarray(difference.actual_array.array, np.float64)
    other = np.asarray(difference.expected_array.array, np.float64)
    found = list(_settings(difference)) + list(_parameters(difference, actual, expected, pairing))
    if one.size != other.size:
        return [*found, f"the shape is {one.shape}, expected {other.shape}"]
    one = one.reshape(other.shape)
    if difference.kind == "gradient":
        return [*found, *_gradients(one, other)] or list(_manners(one, other))
    known = _Known(difference, expected)
    with np.errstate(all="ignore"):
        named = list(dict.fromkeys(name for guess in GUESSES for name in guess(one, other, known)))
    return [*found, *(named or _manners(one, other))]


class _Known:
    """What an explanation can use: arrays that agree, and the parameters of the call on both sides."""

    def __init__(self, difference: Difference, expected: Side) -> None:
        self.names: list[str] = []
        self.inputs: list[Array] = []
        """Floating arrays, each once, the nearest first."""
        self.others: list[Array] = []
        seen = set()
        for name, given, _ in difference.given:
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


def is_close(one: Array, other: Array) -> bool:
    """Whether two arrays are the same for an explanation."""
    if one.shape != other.shape:
        return False
    finite = np.isfinite(other)
    if not np.array_equal(finite, np.isfinite(one)):
        return False
    size = float(np.abs(other[finite]).max(initial=0.0))
    return float(np.abs(one[finite] - other[finite]).max(initial=0.0)) <= CLOSE * size if size else not one.any()


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
        inside = pair.expected.startswith(f"{path}.") if path else "." not in pair.expected
        if pair.expected not in difference.expected.parameters and not inside:
            continue
        array = expected.arrays[pair.expected]
        joined = pair.join(actual.arrays, array.shape)
        if joined is None or array.dtype.kind != "f" or is_close(joined, array):
            continue
        transposed = array.ndim == 2 and array.shape[0] == array.shape[1] and is_close(joined.T, array)
        manner = "transposed" if transposed else next(_manners(joined, array), "another array")
        yield f"{' + '.join(pair.actual)} is {manner}, compared with {pair.expected}"
    for name in pairing.only_expected:
        if name in difference.expected.parameters:
            yield f"{name} has no counterpart"
    for name in pairing.only_actual:
        if name in difference.actual.parameters:
            yield f"{name} has no counterpart"


# ------------------------------------------------------------------------------------------------ guesses by formula


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "no activation": lambda x: x,
    "ReLU": lambda x: np.maximum(x, 0.0),
    "GELU": lambda x: 0.5 * x * (1.0 + _erf(x / 2**0.5)),
    "tanh-approximated GELU": lambda x: 0.5 * x * (1.0 + np.tanh((2.0 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "sigmoid-approximated GELU": lambda x: x * _sigmoid(1.702 * x),
    "SiLU": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": lambda x: _sigmoid(x),
    "squared ReLU": lambda x: np.maximum(x, 0.0) ** 2,
    "ELU": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    "leaky ReLU (0.01)": lambda x: np.where(x > 0.0, x, 0.01 * x),
    "leaky ReLU (0.2)": lambda x: np.where(x > 0.0, x, 0.2 * x),
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "softmax": lambda x: _softmax(x),
}


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -x))


def _erf(x: Array) -> Array:
    from attention_core.reference.feed_forward import erf

    return np.asarray(erf(x)).real


def _softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return weights / weights.sum(axis=-1, keepdims=True)


def _activation(one: Array, other: Array, known: _Known) -> Iterator[str]:
    for x in known.inputs:
        if x.size != other.size or x.size > MOST_ENTRIES:
            continue
        x = x.reshape(other.shape)
        yield from _two(one, other, {name: function(x) for name, function in ACTIVATIONS.items()})


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
    tables = {"none": np.zeros((steps, width)), **dict(_sinusoids(steps, width))}
    apart = (one - other).reshape(-1, steps, width)
    if is_close(apart, np.broadcast_to(apart[:1], apart.shape)):  # whatever they are added to
        for name, table in tables.items():
            expected = next((title for title, read in tables.items() if is_close(apart[0] + read, table)), None)
            if expected is not None and name != expected:
                yield f"sinusoids: {name}, expected {expected}"
                return
    for x in known.inputs:
        if x.size == other.size and x.size <= MOST_ENTRIES:
            yield from _rotations(one, other, x)
    if other.shape[-1] * 2 >= 4:
        bases = [_base_of(array) for array in (one, other)]
        if None not in bases and abs(bases[0] - bases[1]) > 1e-3 * bases[1]:  # type: ignore[operator]
            yield f"positions: base {bases[0]:.6g}, expected {bases[1]:.6g}"


def _sinusoids(steps: int, width: int) -> Iterator[tuple[str, Array]]:
    for base, first in itertools.product(BASES, (0, 1)):
        rates = base ** (-np.arange(0, width, 2) / width)
        short = base ** (-np.arange(width // 2) / max(width // 2 - 1, 1))
        for title, rate in (("", rates), (", rates to the last", short)):
            angles = np.arange(first, first + steps)[:, None] * rate
            names = f"base {base:g}{title}", f" from position {first}"
            yield (
                f"{names[0]}, interleaved{names[1]}",
                np.stack([np.sin(angles), np.cos(angles)], -1).reshape(steps, -1),
            )
            yield f"{names[0]}, sines first{names[1]}", np.concatenate([np.sin(angles), np.cos(angles)], -1)
            yield f"{names[0]}, cosines first{names[1]}", np.concatenate([np.cos(angles), np.sin(angles)], -1)


def _rotations(one: Array, other: Array, x: Array) -> Iterator[str]:
    if x.shape != other.shape:
        return
    for axis in range(other.ndim - 1):
        steps, width = other.shape[axis], other.shape[-1]
        candidates = {}
        for base, first, halves in itertools.product(BASES, (0, 1), (False, True)):
            angles = np.arange(first, first + steps)[:, None] * base ** (-np.arange(0, width, 2) / width)
            shape = [1] * other.ndim
            shape[axis], shape[-1] = steps, width // 2
            cos, sin = np.cos(angles).reshape(shape), np.sin(angles).reshape(shape)
            a, b = (x[..., : width // 2], x[..., width // 2 :]) if halves else (x[..., ::2], x[..., 1::2])
            turned = [a * cos - b * sin, b * cos + a * sin]
            joined = np.concatenate(turned, -1) if halves else np.stack(turned, -1).reshape(x.shape)
            layout = "halves" if halves else "interleaved"
            candidates[f"base {base:g}, {layout}, from position {first}"] = joined
        yield from _two(one, other, candidates, "rotary positions: {}, expected {}")


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


def factor_between(one: Array, other: Array) -> float | None:
    """The constant factor between two arrays; None if there is none, or it is 1."""
    squares = float((other * other).sum())
    if not squares or not math.isfinite(squares):
        return None
    factor = float((one * other).sum()) / squares
    return factor if factor and abs(factor - 1.0) > CLOSE and is_close(one, factor * other) else None


def name_factor(factor: float, shape: Sequence[int]) -> str:
    """A factor, with its meaning if it is a root of a size."""
    near = sorted({size for size in shape if size > 1})
    others = [2**power for power in range(1, 13)]
    whole = abs(factor - round(factor)) < CLOSE
    for sizes, power, name in (
        (near, 0.5, "√{}"),
        (near, -0.5, "1/√{}"),
        (near, 1.0, "{}"),
        (near, -1.0, "1/{}"),
        (others, -1.0, "1/{}"),
        ([] if whole else others, 0.5, "√{}"),
        (others, -0.5, "1/√{}"),
    ):
        for size in sizes:
            if abs(factor / size**power - 1.0) < CLOSE:
                return f"{factor:.6g}" if name == "{}" else f"{factor:.6g} ({name.format(size)})"
    return f"{factor:.6g}"


def _attention(one: Array, other: Array, known: _Known) -> Iterator[str]:
    """Attention of the last three arrays that agree: scale, masks, their fill, and the order of heads."""
    projected = zip(known.names, known.inputs, strict=True)
    widths = [x for name, x in projected if x.ndim == 3 and name.startswith("the output of")][:6]
    if other.ndim != 3 or other.size > MOST_ENTRIES:
        return
    near = itertools.permutations(range(min(3, len(widths))), 3)
    for triple in dict.fromkeys((*near, *((i + 2, i + 1, i) for i in range(len(widths) - 2)))):
        queries, keys, values = (widths[index] for index in triple)
        fits = queries.shape[:2] == other.shape[:2] and keys.shape == values.shape
        if not fits or queries.shape[-1] != keys.shape[-1] or keys.shape[-1] != other.shape[-1]:
            continue
        for heads in (heads for heads in range(1, 33) if keys.shape[-1] % heads == 0):
            candidates = dict(_attentions(queries, keys, values, heads, known.others))
            named = list(_two(one, other, candidates, "attention: {}, expected {}"))
            if named:
                yield from named
                return
            if any(is_close(array, other) for array in candidates.values()):
                return


def _attentions(
    queries: Array, keys: Array, values: Array, heads: int, others: Sequence[Array]
) -> Iterator[tuple[str, Array]]:
    def split(x: Array) -> Array:
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    q, k, v = map(split, (queries, keys, values))
    scores = q @ k.swapaxes(-1, -2)
    steps, length = scores.shape[-2:]
    behind = np.arange(length) - np.arange(steps)[:, None]
    masks: dict[str, Array] = {"no mask": np.ones((1, 1, steps, length), bool)}
    masks |= {
        "causal": behind <= 0,
        "causal, without the key itself": behind < 0,
        "causal, one key further": behind <= 1,
    }
    for other in others:
        for title, padding in _paddings(other, len(queries), length):
            masks |= {title: padding, f"causal, and {title}": padding & (behind <= 0)}
    scales = {f"1/√{n}": n**-0.5 for n in (q.shape[-1], keys.shape[-1], heads)} | {"1": 1.0}
    for (mask_name, mask), (scale_name, scale) in itertools.product(masks.items(), scales.items()):
        for fill_name, fill in (("", -np.inf), (", filled with -1e4", -1e4), (", filled with -1e9", -1e9)):
            filled = np.where(mask, scale * scores, fill)
            weights = np.nan_to_num(_softmax(np.where(np.isneginf(filled).all(-1, keepdims=True), -np.inf, filled)))
            yield f"scale {scale_name}, {mask_name}{fill_name}", (weights @ v).swapaxes(1, 2).reshape(queries.shape)


def _paddings(array: Array, batch: int, length: int) -> Iterator[tuple[str, Array]]:
    """Masks of keys that an input could mean: of a mask itself, inverted, and of lengths."""
    if array.shape == (batch, length):
        mask = (array != 0)[:, None, None, :]
        yield "the mask", mask
        yield "the inverted mask", ~mask
    elif array.shape == (batch,) and array.dtype.kind in "iu":
        yield "the lengths", (np.arange(length) < array[:, None])[:, None, None, :]


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
    """The order of the gates of an LSTM or GRU: each is tried against the expected output."""
    sizes = [array.shape for array in known.parameters.values() if array.ndim == 2]
    hidden = other.shape[-1] if other.ndim else 0
    for count, title in ((4, "LSTM"), (3, "GRU")):
        stacked = [shape for shape in sizes if count * hidden in shape]
        if len(stacked) >= 2 and not known.is_gap:
            for order in itertools.permutations(range(count)):
                blocks = _blocks(one, other, known, count, order)
                if order != tuple(range(count)) and blocks is not None and is_close(blocks, one):
                    yield f"the gates of the {title} are in another order: {', '.join(map(str, order))}"
                    return


def _blocks(one: Array, other: Array, known: _Known, count: int, order: Sequence[int]) -> Array | None:
    """The outputs of a recurrent layer with its gates in that order, of its first sequence input."""
    hidden = other.shape[-1]
    inputs = [x for x in known.inputs if x.ndim == 3 and x.shape[:2] == other.shape[:2]]
    matrices: list[Array] = []
    vectors: list[Array] = []
    for array in known.parameters.values():
        if array.ndim == 2 and count * hidden in array.shape:
            stacked = array if array.shape[0] == count * hidden else array.T
            matrices.append(stacked.reshape(count, hidden, -1)[list(order)])
        elif array.shape == (count * hidden,):
            vectors.append(array.reshape(count, hidden)[list(order)])
    if not inputs or len(matrices) < 2 or matrices[0].shape[-1] != inputs[0].shape[-1]:
        return None
    (w, u), x = matrices[:2], inputs[0]
    first = vectors[0] if vectors else np.zeros((count, hidden))
    second = vectors[1] if len(vectors) > 1 else np.zeros((count, hidden))
    h, c = np.zeros((len(x), hidden)), np.zeros((len(x), hidden))
    outputs = []
    for step in x.swapaxes(0, 1):
        a = np.einsum("bi,khi->kbh", step, w) + first[:, None]
        r = np.einsum("bi,khi->kbh", h, u) + second[:, None]
        if count == 4:
            i, f, g, o = a + r
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(c)
        else:
            reset, update = _sigmoid(a[0] + r[0]), _sigmoid(a[1] + r[1])
            h = (1.0 - update) * np.tanh(a[2] + reset * r[2]) + update * h
        outputs.append(h)
    return np.stack(outputs, 1)


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


# ------------------------------------------------------------------------------------------------ the manner


def _gradients(one: Array, other: Array) -> Iterator[str]:
    if not one.any() and other.any():
        yield "the gradient is 0: a branch is detached"
    factor = factor_between(one, other)
    if factor is not None:
        yield f"the gradient is {name_factor(factor, other.shape)} times what is expected"


def _manners(one: Array, other: Array) -> Iterator[str]:
    """Yield how an error without a name lies: a shift, one index of an axis, from an index on."""
    if not one.any() and other.any():
        yield "it is 0 everywhere"
        return
    factor = factor_between(one, other)
    if factor is not None:
        yield f"{name_factor(factor, other.shape)} times what is expected"
        return
    size = float(np.abs(np.where(np.isfinite(other), other, 0.0)).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(one - other) <= CLOSE * size) & ~((one == other) | (np.isnan(one) & np.isnan(other)))
    for axis in range(other.ndim):
        at = np.flatnonzero(wrong.any(axis=tuple(index for index in range(other.ndim) if index != axis)))
        if 0 < at.size < other.shape[axis]:
            behind = at.size > 1 and at[-1] == other.shape[axis] - 1 and at.size == at[-1] - at[0] + 1
            where = f"from index {at[0]} on" if behind else f"at {', '.join(map(str, at[:6]))}"
            yield f"it differs only {where} of axis {axis} ({other.shape[axis]} long)"
    if not np.isfinite(one).all() and np.isfinite(other).all():
        yield f"{100 * (~np.isfinite(one)).mean():.0f} % of its values are not finite"
