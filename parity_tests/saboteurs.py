"""Deliberately wrong implementations, as data: each is the reference with one thing broken, and says what must be red.

A court that passes one of them is worth nothing. They run in this process, on the cases that they name; a backend that
dies or hangs is another matter, and needs a process (see `parity_tests.launch`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any
from unittest import mock

import numpy as np

from attention_core import reference
from attention_core.differentiation import gradients
from attention_core.operators import MASKS
from attention_core.reference import layers, masking, pooling, recurrent, training
from attention_core.reference.arrays import align, linear, promote
from parity_tests.cases import Arrays, Case, all_cases, is_floating
from parity_tests.cases.decoders import DECODER
from parity_tests.comparison import Verdict, judge
from parity_tests.expected import computed_gradients, computed_outputs, cotangents, expected
from parity_tests.layouts import arranged
from parity_tests.recordings import Cell, Recording, key

Break = Callable[[Any], Any]

MOST_DRAWN = 3
"""So many drawn cases a mistake is tried on where it shows, and where it does not: each is differentiated anew."""


@dataclass(frozen=True)
class Saboteur:
    """A wrong implementation.

    broken maps a name in `attention_core.reference` to a function that takes the original and returns what replaces it;
    spoiled changes a whole answer, misread what is asked; withheld quantities are said not to be implemented. cases are
    patterns of the cases it is tried on; red and green are patterns of case:quantity: what matches red and not green
    has to be red, and all else green, of the cases written by hand. A mistake that shows under a condition alone names
    that instead, as touches: some case for which it holds has to be red, and every other case green. source is where a
    library was found to be so, as owner/repository#number.
    """

    name: str
    sentence: str
    cases: tuple[str, ...]
    red: tuple[str, ...]
    green: tuple[str, ...] = ()
    broken: Mapping[str, Break] | None = None
    spoiled: Callable[[Case, Arrays], Arrays] | None = None
    misread: Callable[[Arrays], Arrays] | None = None
    withheld: tuple[str, ...] = ()
    tier: str = "float64"
    touches: Callable[[Case], bool] | None = None
    source: str = ""

    @property
    def told(self) -> str:
        """The sentence, and in parentheses the issue or pull request of the library that was so, where there is one."""
        return f"{self.sentence} ({self.source})" if self.source else self.sentence

    def must_be_red(self, case: str, quantity: str) -> bool:
        """Whether that quantity of that case has to be red."""
        place = f"{case}:{quantity}"
        return _matches(place, self.red) and not _matches(place, self.green)


@dataclass(frozen=True)
class Caught:
    """What the court said to a saboteur: the red places with the check that caught each, and where it was wrong."""

    saboteur: Saboteur
    by: Mapping[str, int]
    let_through: Sequence[str]
    accused: Sequence[str]

    @property
    def as_stated(self) -> bool:
        """Whether exactly the stated places are red, and there are some."""
        return bool(self.by) and not self.let_through and not self.accused


def attempt(saboteur: Saboteur, cases: Sequence[Case] | None = None) -> tuple[list[Cell], Recording]:
    """What the saboteur answers to its cases, as a worker would record it."""
    chosen = [case for case in cases or all_cases(trained=True) if _matches(case.id, saboteur.cases)]
    if cases is None:
        chosen = [*(case for case in chosen if case.drawn is None and not case.again), *_smallest(saboteur, chosen)]
    # A drawn case has one tier, whichever that is.
    tiers = [(case, case.tiers[0] if case.drawn is not None else saboteur.tier) for case in chosen]
    cells = [(case, tier) for case, tier in tiers if tier in case.tiers]
    recording = Recording(saboteur.name, "cpu")
    for cell in cells:
        recording.status[key(cell)], recording.cells[key(cell)] = answer(saboteur, *cell)
    return cells, recording


def _smallest(saboteur: Saboteur, cases: Sequence[Case]) -> list[Case]:
    """Of the cases that were not written by hand, a few small ones that the mistake touches, and a few others."""
    touches = saboteur.touches
    if touches is None:
        return []
    rest = [case for case in cases if case.drawn is not None or case.again]
    rest.sort(key=lambda case: sum(array.size for array in (*case.inputs.values(), *case.parameters.values())))
    touched, others = [case for case in rest if touches(case)], [case for case in rest if not touches(case)]
    return touched[:MOST_DRAWN] + others[:MOST_DRAWN]


def answer(saboteur: Saboteur, case: Case, tier: str, without: tuple[str, ...] = ()) -> tuple[dict[str, Any], Arrays]:
    """What becomes of a cell, and what the saboteur answers; the gradients are those of the outputs not left out."""
    inputs, parameters = case.at(tier)
    inputs = {name: arranged(array, case.layouts.get(name, "")) for name, array in inputs.items()}
    inputs = saboteur.misread(inputs) if saboteur.misread else inputs
    before = {name: array.copy() for name, array in inputs.items()}
    factors = cotangents(case, tier, without)
    try:
        with in_place_of_the_reference(saboteur), np.errstate(all="ignore"):
            answer = computed_outputs(case, inputs, parameters)
            gradients = computed_gradients(case, before, parameters, factors) if case.gradients else {}
    except Exception as error:  # as in a worker, whatever an implementation raises costs its own cell
        return {"status": "error", "message": f"{type(error).__name__}: {error}"}, {}
    changed = [name for name in before if not np.array_equal(inputs[name], before[name], equal_nan=True)]
    answer |= {f"gradient_{name}": array for name, array in gradients.items()}
    with np.errstate(over="ignore"):  # what is beyond the tier becomes inf
        answer = {name: array.astype(tier) if is_floating(array) else array for name, array in answer.items()}
    answer = saboteur.spoiled(case, answer) if saboteur.spoiled else answer
    given = {name: array for name, array in answer.items() if name not in saboteur.withheld}
    return {"status": "ok", "changed": changed, "lacking": list(saboteur.withheld)}, given


def judged(saboteur: Saboteur, cells: Sequence[Cell], recording: Recording) -> Caught:
    """Hold the saboteur's answers against the reference, and the verdicts against what it states."""
    verdicts: list[Verdict] = [verdict for cell in cells for verdict in judge(cell, expected(*cell), recording)]
    red = [f"{verdict.case}:{verdict.quantity}" for verdict in verdicts if verdict.red]
    by = Counter(verdict.check for verdict in verdicts if verdict.red)
    if saboteur.touches is not None:
        touched = {case.id for case, _ in cells if saboteur.touches(case)}
        accused = [place for place in red if place.split(":")[0] not in touched]
        return Caught(saboteur, by, [] if red else sorted(touched) or ["no case"], accused)
    let_through = [
        f"{verdict.case}:{verdict.quantity}"
        for verdict in verdicts
        if not verdict.red and saboteur.must_be_red(verdict.case, verdict.quantity)
    ]
    # A place that no verdict speaks of is no less let through.
    let_through += [pattern for pattern in saboteur.red if not any(fnmatchcase(place, pattern) for place in red)]
    accused = [place for place in red if not saboteur.must_be_red(*place.split(":"))]
    return Caught(saboteur, by, let_through, accused)


@contextmanager
def in_place_of_the_reference(saboteur: Saboteur) -> Iterator[None]:
    """The reference, broken as the saboteur says, until the context is left."""
    with ExitStack() as stack:
        for name, wrong in (saboteur.broken or {}).items():
            owner: Any = reference
            *path, attribute = name.split(".")
            for part in path:
                owner = getattr(owner, part)
            stack.enter_context(mock.patch.object(owner, attribute, wrong(getattr(owner, attribute))))
        yield


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array with its values rounded to dtype, and the derivatives that it carries left alone."""
    array = np.asarray(array)
    rounded = array.real.astype(dtype).astype(np.float64)
    return rounded + 1j * array.imag if np.iscomplexobj(array) else rounded


def _to_tensor_float(array: np.ndarray) -> np.ndarray:
    """The array with 10 bits of each fraction, as TensorFloat-32 has."""
    array = np.asarray(array)
    fraction, exponent = np.frexp(array.real)
    rounded = np.ldexp(np.round(fraction * 2.0**11) * 2.0**-11, exponent)
    return rounded + 1j * array.imag if np.iscomplexobj(array) else rounded


# ------------------------------------------------------------------------------------------------ scores


def _scale_ignored(original: Any) -> Any:
    return lambda queries, keys, *, scale=None: original(queries, keys)


def _scale_off(original: Any) -> Any:
    return lambda queries, keys, *, scale=None: original(queries, keys, scale=scale) * (1.0 + 1e-5)


def _scale_missing(original: Any) -> Any:
    return lambda queries, keys, *, scale=None: original(queries, keys, scale=1.0 if scale is None else scale)


def _gradient_stopped(original: Any) -> Any:
    return lambda queries, keys: original(queries, np.real(keys))


def _tensor_float(original: Any) -> Any:
    return lambda queries, keys: original(_to_tensor_float(queries), _to_tensor_float(keys))


def _eps_in_the_norm(original: Any) -> Any:
    return lambda vectors: vectors / (np.sqrt((vectors * vectors).sum(axis=-1, keepdims=True)) + 1e-8)


def _squares_of_single(low: bool) -> Break:
    """Lengths from squares that are lost where float32 does not hold them: at its lower end, or at its upper."""
    least, most = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

    def direction(vectors: Any) -> Any:
        squares = vectors * vectors
        squares = (
            np.where(squares.real < least, 0.0, squares) if low else np.where(squares.real > most, np.inf, squares)
        )
        square = squares.sum(axis=-1, keepdims=True)
        zero = square.real == 0.0
        return np.where(zero, 0.0, vectors / np.sqrt(np.where(zero, 1.0, square)))

    return lambda original: direction


def _width_ignored(original: Any) -> Any:
    return lambda queries, keys, w=None: original(queries, keys)


def _by_squares(original: Any) -> Any:
    def score(queries: Any, keys: Any, w: Any = None) -> Any:
        queries, keys = promote(queries), promote(keys)
        squares = (queries * queries).sum(-1)[..., :, None] + (keys * keys).sum(-1)[..., None, :]
        squares = squares - 2.0 * (queries @ keys.swapaxes(-1, -2))
        return -0.5 * squares * (1.0 if w is None else align(promote(w), 0, squares.ndim) ** 2)

    return score


def _last_positions(original: Any) -> Any:
    return lambda num_keys, queries: queries[..., queries.shape[-1] - num_keys :]


def _without_tanh(original: Any) -> Any:
    def score(queries: Any, keys: Any, w_v: Any) -> Any:
        hidden = np.asarray(queries)[..., :, None, :] + np.asarray(keys)[..., None, :, :]
        return (hidden * align(np.asarray(w_v), 1, hidden.ndim)).sum(axis=-1)

    return score


def _unbounded(original: Any) -> Any:
    """Tanh by two exponentials, as blocks compute it, without asking how large they become."""

    def score(queries: Any, keys: Any, w_v: Any) -> Any:
        a, c = np.exp(-2 * promote(queries)), np.exp(-2 * promote(keys))
        hidden = 2 / (1 + a[..., :, None, :] * c[..., None, :, :]) - 1
        return (hidden * align(promote(w_v), 1, hidden.ndim)).sum(axis=-1)

    return score


def _last_block_lost(original: Any) -> Any:
    """The rows behind the last whole block of two are never written."""

    def score(queries: Any, keys: Any, w_v: Any) -> Any:
        scores = original(queries, keys, w_v)
        whole = scores.shape[-2] // 2 * 2
        return np.where(np.arange(scores.shape[-2])[:, None] < whole, scores, 0.0)

    return score


def _without_w_v(original: Any) -> Any:
    return lambda queries, keys, w_v: original(queries, keys, np.ones_like(w_v))


# ------------------------------------------------------------------------------------------------ masks


def _masks(change: Callable[..., Any]) -> Break:
    """A function of scores, lengths and mask that is given another mask."""

    def wrong(original: Any) -> Any:
        def call(scores: Any, valid_lens: Any = None, mask: Any = None) -> Any:
            return original(scores, valid_lens, None if mask is None else change(mask))

        return call

    return wrong


def _first_head(mask: Any) -> Any:
    return np.broadcast_to(mask[:, :1], mask.shape) if mask.ndim == 4 else mask


def _fixed(option: str, value: int) -> Break:
    """A rule that always takes the same value for an option."""

    def wrong(original: Any) -> Any:
        return lambda num_queries, num_keys, **options: original(num_queries, num_keys, **{**options, option: value})

    return wrong


def _global_queries_lost(original: Any) -> Any:
    return lambda global_queries, global_keys: original(np.zeros_like(global_queries), global_keys)


def _hiding_kept(original: Any) -> Any:
    return lambda **given: ~original(**given)


def _threshold_ignored(original: Any) -> Any:
    return lambda additive_mask, *, threshold=None: original(additive_mask)


def _threshold_met(original: Any) -> Any:
    def turn(additive_mask: Any, *, threshold: float = -1e4) -> Any:
        return additive_mask >= np.asarray(threshold).astype(additive_mask.dtype)

    return turn


def _threshold_exact(original: Any) -> Any:
    return lambda additive_mask, *, threshold=-1e4: additive_mask.astype(np.float64) > threshold


def _infinite_alone(original: Any) -> Any:
    return lambda additive_mask, *, threshold=None: additive_mask != -np.inf


def _zero_alone(original: Any) -> Any:
    return lambda additive_mask, *, threshold=None: additive_mask == 0.0


def _finite_ignored(original: Any) -> Any:
    return lambda mask, *, dtype="float32", finite=False: original(mask, dtype=dtype)


def _dtype_ignored(original: Any) -> Any:
    return lambda mask, *, dtype="float32", finite=False: original(mask, finite=finite)


def _in_float32(case: Case, answer: Arrays) -> Arrays:
    with np.errstate(over="ignore"):
        return {name: array.astype(np.float32) for name, array in answer.items()}


def _filled(value: float) -> Break:
    """to_additive_mask with another number where a key is hidden."""
    return lambda original: lambda mask, *, dtype="float32", finite=False: np.where(mask, 0.0, value)


def _softmax(change: Callable[[Any, Any], Any]) -> Break:
    """masked_softmax, made of scores and what is open to them by another formula."""

    def wrong(original: Any) -> Any:
        def call(scores: Any, valid_lens: Any = None, mask: Any = None) -> Any:
            scores = np.asarray(scores)
            return change(scores, masking.open_keys(scores, valid_lens, mask))

        return call

    return wrong


def _plain_softmax(scores: Any) -> Any:
    exponentials = np.exp(scores - scores.real.max(axis=-1, keepdims=True, initial=-np.inf))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _finite_fill(scores: Any, allowed: Any) -> Any:
    return _plain_softmax(np.where(allowed, scores, -1e6))


def _closed_uniform(scores: Any, allowed: Any) -> Any:
    weights = masking.softmax_over(scores, allowed)
    return np.where(allowed.any(axis=-1, keepdims=True), weights, 1.0 / max(scores.shape[-1], 1))


def _closed_nan(scores: Any, allowed: Any) -> Any:
    return np.where(allowed.any(axis=-1, keepdims=True), masking.softmax_over(scores, allowed), np.nan)


def _over_queries(scores: Any, allowed: Any) -> Any:
    if scores.shape[-2] == 0:
        return scores
    return masking.softmax_over(scores.swapaxes(-1, -2), allowed.swapaxes(-1, -2)).swapaxes(-1, -2)


def _float32_inside(scores: Any, allowed: Any) -> Any:
    return masking.softmax_over(_rounded(scores, "float32"), allowed)


def _small_weights(least: float, change: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Softmax whose weights below a bound are changed, and their derivatives are not."""

    def weigh(scores: Any, allowed: Any) -> Any:
        weights = masking.softmax_over(scores, allowed)
        return np.where(weights.real < least, change(weights), weights)

    return weigh


def _gaps_bounded(scores: Any, allowed: Any) -> Any:
    top = np.where(allowed, scores, -np.inf).real.max(axis=-1, keepdims=True, initial=-np.inf)
    gaps = np.where(allowed, scores - np.where(np.isfinite(top), top, 0.0), 0.0)
    return masking.softmax_over(np.where(gaps.real < -20.0, -20.0, gaps), allowed)


def _added(scores: Any, allowed: Any) -> Any:
    return masking.softmax_over(scores, allowed) + 1e-20


def _half_weights(scores: Any, allowed: Any) -> Any:
    return _rounded(masking.softmax_over(scores, allowed), "float16")


def _fills_in_place(original: Any) -> Any:
    def call(scores: Any, valid_lens: Any = None, mask: Any = None) -> Any:
        weights = original(scores, valid_lens, mask)
        if mask is not None and not np.iscomplexobj(scores):
            scores[~masking.open_keys(scores, valid_lens, mask)] = -np.inf
        return weights

    return call


def _first_length(original: Any) -> Any:
    def call(num_keys: int, valid_lens: Any = None, mask: Any = None) -> Any:
        per_query = valid_lens is not None and valid_lens.ndim == 2
        return original(
            num_keys, np.repeat(valid_lens[:, :1], valid_lens.shape[1], 1) if per_query else valid_lens, mask
        )

    return call


def _one_too_many(original: Any) -> Any:
    def call(num_keys: int, valid_lens: Any = None, mask: Any = None) -> Any:
        return original(num_keys, None if valid_lens is None else valid_lens + valid_lens.dtype.type(1), mask)

    return call


def _either(original: Any) -> Any:
    def call(num_keys: int, valid_lens: Any = None, mask: Any = None) -> Any:
        if valid_lens is None or mask is None:
            return original(num_keys, valid_lens, mask)
        by_length = original(num_keys, valid_lens)
        return mask | (by_length if mask.ndim == 3 else by_length[:, None])

    return call


# ------------------------------------------------------------------------------------------------ pooling


def _pool(change: Callable[..., tuple[Any, Any]]) -> Break:
    """The pooling of scores and values under a mask, by another formula."""
    return lambda original: change


def _dropout_before_softmax(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> tuple[Any, Any]:
    scores = scores if dropout_mask is None else np.where(allowed, scores, 0.0) * dropout_mask
    weights = masking.softmax_over(scores, allowed)
    return weights @ np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0), weights


def _dropped_weights_returned(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> tuple[Any, Any]:
    weights = masking.softmax_over(scores, allowed)
    weights = weights if dropout_mask is None else weights * dropout_mask
    return weights @ np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0), weights


def _dropout_ignored(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> tuple[Any, Any]:
    weights = masking.softmax_over(scores, allowed)
    return weights @ np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0), weights


def _hidden_values_kept(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> tuple[Any, Any]:
    weights = masking.softmax_over(scores, allowed)
    return (weights if dropout_mask is None else weights * dropout_mask) @ values, weights


def _memory_without_mask(original: Any) -> Any:
    def attend(self: Any, queries: Any, memory: Any, **given: Any) -> Any:
        return original(self, queries, memory._replace(mask=None), **given)

    return attend


def _alone(wrong: Callable[..., Any]) -> Break:
    """Attending that is wrong where the context alone is asked for, from all scores that count, and values."""

    def attending(original: Any) -> Any:
        def attend(self: Any, queries: Any, memory: Any, *, need_weights: bool = True, **given: Any) -> Any:
            found = original(self, queries, memory, need_weights=need_weights, **given)
            if need_weights:
                return found
            scores = self.score(self.turned(promote(queries)), memory.keys)
            allowed = masking.open_keys(scores, None, memory.mask)
            return wrong(found[0], scores, allowed, memory.values), None

        return attend

    return attending


def _average_of_a_closed_row(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """What a finite fill leaves: all keys alike."""
    same = values.mean(axis=-2, keepdims=True) if values.shape[-2] else 0.0
    return np.where(allowed.any(axis=-1)[..., None], context, same)


def _blocks_of_their_own_largest(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """Sums over blocks of four keys, each divided by e to its own largest score, and added as they are."""
    above, below = np.zeros_like(context), np.zeros_like(context[..., :1])
    for start in range(0, scores.shape[-1], 4):
        own, seen = scores[..., start : start + 4], allowed[..., start : start + 4]
        largest = np.where(seen, own.real, -np.inf).max(axis=-1, keepdims=True)
        parts = np.where(seen, np.exp(np.where(seen, own - np.where(seen, largest, 0.0), 0.0)), 0.0)
        above, below = above + parts @ values[..., start : start + 4, :], below + parts.sum(axis=-1, keepdims=True)
    return above / np.where(below == 0.0, 1.0, below)


def _keys_of_the_first(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """The keys behind the last one that is open in the first sequence are cut off."""
    seen = allowed[(0,) * (allowed.ndim - 2)] if allowed.size else allowed
    last = np.flatnonzero(seen.any(axis=-2))[-1:] if seen.size else np.zeros(0, int)
    kept = np.arange(scores.shape[-1]) <= last.sum()
    return pooling.pool(scores, values, allowed & kept, None)[0]


def _memory_of_the_last(original: Any) -> Any:
    """Where the context alone is asked for, keys and values get the gradient of the last query alone."""

    def attend(self: Any, queries: Any, memory: Any, *, need_weights: bool = True, **given: Any) -> Any:
        found = original(self, queries, memory, need_weights=need_weights, **given)
        if need_weights:
            return found
        detached = memory._replace(keys=promote(memory.keys).real, values=promote(memory.values).real)
        before, _ = original(self, queries, detached, need_weights=False, **given)
        return np.concatenate([before[..., :-1, :], found[0][..., -1:, :]], axis=-2), None

    return attend


def _identity(original: Any) -> Any:
    def prepare(self: Any, keys: Any, values: Any, valid_lens: Any = None, mask: Any = None) -> Any:
        self.parameters = {"W": np.eye(*self.parameters["W"].shape[-2:])}
        return original(self, keys, values, valid_lens, mask)

    return prepare


def _columns_rolled(original: Any) -> Any:
    def prepare(self: Any, keys: Any, values: Any, valid_lens: Any = None, mask: Any = None) -> Any:
        rolled = np.roll(self.parameters["W"], -self.sizes["key_size"], axis=-1)
        self.parameters = {**self.parameters, "W": rolled}
        return original(self, keys, values, valid_lens, mask)

    return prepare


def _matrices_swapped(original: Any) -> Any:
    def prepare(self: Any, keys: Any, values: Any, valid_lens: Any = None, mask: Any = None) -> Any:
        self.parameters = {**self.parameters, "W_q": self.parameters["W_k"], "W_k": self.parameters["W_q"]}
        return original(self, keys, values, valid_lens, mask)

    return prepare


# ------------------------------------------------------------------------------------------------ attention layers


def _constructed(**fixed: Any) -> Break:
    """A layer whose constructor takes these values in place of what it is given."""

    def wrong(original: Any) -> Any:
        def __init__(self: Any, *arguments: Any, **config: Any) -> None:
            original(self, *arguments, **{**config, **fixed})

        return __init__

    return wrong


def _called(**fixed: Any) -> Break:
    """A method that takes these values in place of what it is given."""

    def wrong(original: Any) -> Any:
        return lambda self, *arrays, **given: original(self, *arrays, **{**given, **fixed})

    return wrong


def _as_it_is(original: Any) -> Any:
    return lambda self, array: array


def _sized(**changes: Callable[[Any], Any]) -> Break:
    """A method during which some of the layer's sizes are others."""

    def wrong(original: Any) -> Any:
        def call(self: Any, *arrays: Any, **given: Any) -> Any:
            changed = {**self.sizes, **{name: change(self.sizes) for name, change in changes.items()}}
            with mock.patch.object(self, "sizes", changed):
                return original(self, *arrays, **given)

        return call

    return wrong


def _whole_length(original: Any) -> Any:
    def attend(self: Any, queries: Any, memory: Any, **given: Any) -> Any:
        def as_masked(scores: Any, lens: Any, mask: Any) -> Any:
            return masking.open_keys(scores, lens, memory.mask)

        with mock.patch.object(layers, "open_keys", as_masked):
            return original(self, queries, memory._replace(mask=None), **given)

    return attend


def _renormalised(original: Any) -> Any:
    def pooled(scores: Any, values: Any, allowed: Any, factor: Any) -> Any:
        weights = masking.softmax_over(scores, allowed)
        near = weights if factor is None else weights * factor
        total = near.sum(axis=-1, keepdims=True)
        near = near / np.where(total.real == 0.0, 1.0, total)
        return near @ np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0), weights

    return pooled


def _unscaled_parts(original: Any) -> Any:
    def made(part: Any) -> Any:
        dot = part.layer.name == "DotProductAttention"
        return original(replace(part, config={**part.config, "scale": 1.0}) if dot else part)

    return made


def _soft(original: Any) -> Any:
    def attend(self: Any, queries: Any, memory: Any, *, noise: Any = None, **given: Any) -> Any:
        return reference.layers.Attention.attend(self, queries, memory, **given)

    return attend


def _leaking(original: Any) -> Any:
    def attend(self: Any, queries: Any, memory: Any, **given: Any) -> Any:
        context, weights = original(self, queries, memory, **given)
        scores = self.score(self.turned(promote(queries)), memory.keys)
        soft = masking.softmax_over(scores, masking.open_keys(scores, None, memory.mask))
        return context, weights + (soft - soft.real)

    return attend


def _without_bias(original: Any) -> Any:
    return lambda self, which, inputs: linear(inputs, self.parameters[f"W_{which}"])


def _strided_heads(original: Any) -> Any:
    def split(self: Any, array: Any) -> Any:
        shape = (*array.shape[:-1], self.sizes["head_size"], self.sizes["heads"])
        return np.moveaxis(array.reshape(shape), -1, -3)

    return split


def _head_mask_on_rows(original: Any) -> Any:
    def attend(self: Any, queries: Any, memory: Any, *, head_mask: Any = None, **given: Any) -> Any:
        row = None if head_mask is None else np.broadcast_to(head_mask[..., :1, :], head_mask.shape)
        return original(self, queries, memory, head_mask=row, **given)

    return attend


def _absolute_value_left_out(original: Any) -> Any:
    def importance(losses: Any, head_mask: Any) -> Any:
        def total(arrays: Any) -> Any:
            return (losses(arrays["head_mask"]),)

        found = gradients(total, {"head_mask": head_mask}, {"0": np.ones(len(head_mask))}, stacked=False)
        return (head_mask * found["head_mask"]).mean(axis=0)

    return importance


def _inverted_ablation(original: Any) -> Any:
    return lambda losses, head_mask: -original(losses, head_mask)


def _rates_to_the_end(original: Any) -> Any:
    def rates(features: int) -> Any:
        pairs = features // 2
        high = 10000.0 ** (-np.arange(pairs) / max(pairs - 1, 1))
        return high, np.zeros(pairs)

    return rates


def _rates_of_one_float(original: Any) -> Any:
    def rates(features: int) -> Any:
        high, low = original(features)
        return (high + low).astype(np.float32).astype(np.float64), np.zeros_like(low)

    return rates


# ------------------------------------------------------------------------------------------------ recurrent layers


def _cell(change: Callable[..., Any]) -> Break:
    """One step of one layer, by another formula of its parameters: W, U, b, b_hn, inputs, state."""

    def wrong(original: Any) -> Any:
        def cell(self: Any, prefix: str, inputs: Any, state: Any) -> Any:
            return change(*(self.parameters[prefix + name] for name in ("W", "U", "b", "b_hn")), inputs, state)

        return cell

    return wrong


def _gates(W: Any, U: Any, b: Any, inputs: Any, state: Any) -> tuple[list[Any], list[Any]]:
    from_inputs = [linear(inputs, W[..., gate, :, :], b[..., gate, :]) for gate in range(3)]
    return from_inputs, [linear(state, U[..., gate, :, :]) for gate in range(3)]


def _gates_swapped(W: Any, U: Any, b: Any, b_hn: Any, inputs: Any, state: Any) -> Any:
    x, h = _gates(W, U, b, inputs, state)
    update, reset = recurrent.sigmoid(x[0] + h[0]), recurrent.sigmoid(x[1] + h[1])
    new = np.tanh(x[2] + reset * (h[2] + align(b_hn, 1, state.ndim)))
    return (1.0 - update) * new + update * state


def _reset_before(W: Any, U: Any, b: Any, b_hn: Any, inputs: Any, state: Any) -> Any:
    x, h = _gates(W, U, b, inputs, state)
    reset, update = recurrent.sigmoid(x[0] + h[0]), recurrent.sigmoid(x[1] + h[1])
    new = np.tanh(x[2] + linear(reset * state, U[..., 2, :, :]) + align(b_hn, 1, state.ndim))
    return (1.0 - update) * new + update * state


def _without_hidden_bias(W: Any, U: Any, b: Any, b_hn: Any, inputs: Any, state: Any) -> Any:
    x, h = _gates(W, U, b, inputs, state)
    reset, update = recurrent.sigmoid(x[0] + h[0]), recurrent.sigmoid(x[1] + h[1])
    return (1.0 - update) * np.tanh(x[2] + reset * h[2]) + update * state


def _update_inverted(W: Any, U: Any, b: Any, b_hn: Any, inputs: Any, state: Any) -> Any:
    x, h = _gates(W, U, b, inputs, state)
    reset, update = recurrent.sigmoid(x[0] + h[0]), recurrent.sigmoid(x[1] + h[1])
    return update * np.tanh(x[2] + reset * (h[2] + align(b_hn, 1, state.ndim))) + (1.0 - update) * state


def _upper_layers_skipped(original: Any) -> Any:
    def cell(self: Any, prefix: str, inputs: Any, state: Any) -> Any:
        return original(self, prefix, inputs, state) if prefix.startswith("0.") else inputs

    return cell


def _padding_moves_the_state(original: Any) -> Any:
    def call(self: Any, inputs: Any, valid_lens: Any = None, state: Any = None, *, dropout_mask: Any = None) -> Any:
        _, moved = original(self, np.where(np.isfinite(inputs), inputs, 0.0), None, state, dropout_mask=dropout_mask)
        outputs, _ = original(self, inputs, valid_lens, state, dropout_mask=dropout_mask)
        return outputs, moved

    return call


def _padding_answers(original: Any) -> Any:
    def call(self: Any, inputs: Any, valid_lens: Any = None, state: Any = None, *, dropout_mask: Any = None) -> Any:
        outputs, _ = original(self, np.where(np.isfinite(inputs), inputs, 0.0), None, state, dropout_mask=dropout_mask)
        return outputs, original(self, inputs, valid_lens, state, dropout_mask=dropout_mask)[1]

    return call


def _states_reversed(original: Any) -> Any:
    def call(self: Any, inputs: Any, valid_lens: Any = None, state: Any = None, *, dropout_mask: Any = None) -> Any:
        outputs, last = original(self, inputs, valid_lens, state, dropout_mask=dropout_mask)
        return outputs, last[..., ::-1, :, :]

    return call


def _lstm(change: Callable[..., tuple[Any, Any]]) -> Break:
    """One step of an LSTM, by another formula of its four gates before their nonlinearities, and its cells."""

    def wrong(original: Any) -> Any:
        def cell(self: Any, prefix: str, inputs: Any, state: Any) -> Any:
            weights, recurrent_weights, bias = (self.parameters[prefix + name] for name in ("W", "U", "b"))
            hidden, cells = np.split(state, 2, axis=-1)
            gates = [
                linear(inputs, weights[..., gate, :, :], bias[..., gate, :])
                + linear(hidden, recurrent_weights[..., gate, :, :])
                for gate in range(4)
            ]
            return np.concatenate(change(*gates, cells), axis=-1)

        return cell

    return wrong


def _lstm_step(i: Any, f: Any, g: Any, o: Any, cells: Any) -> tuple[Any, Any]:
    cells = recurrent.sigmoid(f) * cells + recurrent.sigmoid(i) * np.tanh(g)
    return recurrent.sigmoid(o) * np.tanh(cells), cells


def _gate_order_of_another(i: Any, f: Any, g: Any, o: Any, cells: Any) -> tuple[Any, Any]:
    return _lstm_step(i, f, o, g, cells)


def _forget_bias(i: Any, f: Any, g: Any, o: Any, cells: Any) -> tuple[Any, Any]:
    return _lstm_step(i, f + 1.0, g, o, cells)


def _cells_not_squashed(i: Any, f: Any, g: Any, o: Any, cells: Any) -> tuple[Any, Any]:
    cells = recurrent.sigmoid(f) * cells + recurrent.sigmoid(i) * np.tanh(g)
    return recurrent.sigmoid(o) * cells, cells


def _cells_first(original: Any) -> Any:
    def call(self: Any, *arrays: Any, **given: Any) -> Any:
        outputs, state = original(self, *arrays, **given)
        return outputs, np.roll(state, state.shape[-1] // 2, axis=-1)

    return call


def _backward_from_the_end(original: Any) -> Any:
    def run(self: Any, prefix: str, inputs: Any, state: Any, real: Any, backward: bool) -> Any:
        outputs, last = original(self, prefix, inputs, state, np.ones_like(real) if backward else real, backward)
        return np.where(real[..., None], outputs, 0.0), last

    return run


def _directions_swapped(original: Any) -> Any:
    def call(self: Any, *arrays: Any, **given: Any) -> Any:
        outputs, state = original(self, *arrays, **given)
        both = self.sizes["bidirectional"]
        return np.roll(outputs, self.sizes["hidden_size"], axis=-1) if both else outputs, state

    return call


def _halves_swapped(original: Any) -> Any:
    def call(self: Any, outputs: Any, state: Any) -> Any:
        hidden = self.sizes["hidden_size"]
        parts = state.reshape(*state.shape[:-1], self.sizes["parts"], 2 * hidden)
        return original(self, outputs, np.roll(parts, hidden, axis=-1).reshape(state.shape))

    return call


def _outputs_not_summed(original: Any) -> Any:
    def call(self: Any, outputs: Any, state: Any) -> Any:
        merged, state = original(self, outputs, state)
        return merged if self.sizes["method"] != "sum" else outputs[..., : self.sizes["hidden_size"]], state

    return call


def _one_weight_for_both(original: Any) -> Any:
    def call(self: Any, outputs: Any, state: Any) -> Any:
        firsts = {
            name: np.repeat(
                array[..., :1, :] if name.endswith("b_s") else array[..., :1, :, :],
                self.sizes["parts"],
                axis=-2 if name.endswith("b_s") else -3,
            )
            for name, array in self.parameters.items()
        }
        with mock.patch.object(self, "parameters", firsts):
            return original(self, outputs, state)

    return call


def _embedding_scaled(original: Any) -> Any:
    return lambda title, tokens, table: original(title, tokens, table) * np.sqrt(table.shape[-1])


# ------------------------------------------------------------------------------------------------ decoders


def _query_detached(original: Any) -> Any:
    """The state as a query passes no gradient on."""

    def attend(self: Any, queries: Any, memory: Any, **given: Any) -> Any:
        return original(self, promote(queries).real, memory, **given)

    return attend


def _query_after_the_step(original: Any) -> Any:
    def step(self: Any, tokens: Any, state: Any, memory: Any, **masks: Any) -> Any:
        _, after, _ = original(self, tokens, state, memory, **masks)
        attend = self.attention.attend

        def later(queries: Any, memory: Any, *, dropout_mask: Any = None) -> Any:
            return attend(after[..., -1, :, None, :], memory, dropout_mask=dropout_mask)

        with mock.patch.object(self.attention, "attend", later):
            return original(self, tokens, state, memory, **masks)

    return step


def _context_after_embedding(original: Any) -> Any:
    def step(self: Any, inputs: Any, state: Any, *, dropout_mask: Any = None) -> Any:
        return original(self, np.roll(inputs, DECODER["embed_size"], axis=-1), state, dropout_mask=dropout_mask)

    return step


def _without_readout_bias(original: Any) -> Any:
    return lambda inputs, weight, bias=None: original(inputs, weight)


def _started(change: Callable[[Any, Any], Any]) -> Break:
    """A start that gives another state, made of the layer and the right one."""

    def wrong(original: Any) -> Any:
        return lambda self, *arrays, **given: change(self, original(self, *arrays, **given))

    return wrong


def _learned_lost(layer: Any, state: Any) -> Any:
    return state * 0.0 if layer.sizes["initial"] == "learned" else state


def _zero_started(layer: Any, state: Any) -> Any:
    return state + 0.5 if layer.sizes["initial"] == "zero" else state


def _previous_query(original: Any) -> Any:
    """Luong's decoder with the query of Bahdanau's."""

    def advance(
        self: Any, embedded: Any, state: Any, memory: Any, dropout_mask: Any, attention_dropout_mask: Any
    ) -> Any:
        attend, hidden = self.attention.attend, self.sizes["hidden_size"]

        def earlier(queries: Any, memory: Any, **given: Any) -> Any:
            return attend(state.rnn[..., -1, :, None, :hidden], memory, **given)

        with mock.patch.object(self.attention, "attend", earlier):
            return original(self, embedded, state, memory, dropout_mask, attention_dropout_mask)

    return advance


def _stepped(change: Callable[[Any], Any]) -> Break:
    """A step of Luong's decoder that reads another state."""

    def wrong(original: Any) -> Any:
        def advance(self: Any, embedded: Any, state: Any, *rest: Any) -> Any:
            return original(self, embedded, change(state), *rest)

        return advance

    return wrong


def _cells_lost(original: Any) -> Any:
    def step(self: Any, inputs: Any, state: Any, **given: Any) -> Any:
        outputs = np.arange(state.shape[-1]) < state.shape[-1] // 2
        return original(self, inputs, np.where(outputs, state, 0.0), **given)

    return step


def _position_stands(original: Any) -> Any:
    def advance(self: Any, embedded: Any, state: Any, *rest: Any) -> Any:
        features, after, weights = original(self, embedded, state, *rest)
        return features, after._replace(position=state.position), weights

    return advance


def _joined_reversed(original: Any) -> Any:
    return lambda *arrays: original(*reversed(arrays))


def _maxout_of_halves(original: Any) -> Any:
    """The readout whose pairs are the two halves, as where a matrix is split in two."""

    def call(inputs: Any, weight: Any, bias: Any = None) -> Any:
        outputs = original(inputs, weight, bias)
        if weight.shape[-1] != inputs.shape[-1] or weight.shape[-1] < 12:
            return outputs
        first, second = np.split(outputs, 2, axis=-1)
        return np.stack([first, second], axis=-1).reshape(outputs.shape)

    return call


def _mean_context(original: Any) -> Any:
    def advance(self: Any, embedded: Any, state: Any, memory: Any, *rest: Any) -> Any:
        mask = memory.mask
        count = memory.values.shape[-2] if mask is None else mask.sum(axis=-1)[..., None]
        total = memory.values.sum(axis=-2, keepdims=True)
        mean = np.broadcast_to(total / np.maximum(count, 1), memory.values.shape)
        return original(self, embedded, state, memory._replace(values=mean), *rest)

    return advance


def _penalty_lost(original: Any) -> Any:
    return lambda lengths, length_penalty: original(lengths, 0.0)


def _penalty_without_five(original: Any) -> Any:
    return lambda lengths, length_penalty: np.maximum(lengths, 1.0) ** length_penalty


def _one_hypothesis(original: Any) -> Any:
    def beam(self: Any, *arrays: Any, num_best: int = 1, width: int, **options: Any) -> Any:
        found = original(self, *arrays, num_best=1, width=1, **options)
        return tuple(np.repeat(array, num_best, axis=1) for array in found)

    return beam


def _last_of_equal_tokens(original: Any) -> Any:
    def greedy(self: Any, *arrays: Any, bos: int, eos: int, **options: Any) -> Any:
        given, last = self.parameters, self.sizes["vocab_size"] - 1
        rows = {name: given[name][::-1] for name in ("embedding", "dense.W", "dense.b")}
        self.parameters = {**given, **rows}  # argmax takes the first: of the tokens in reverse
        tokens, *rest = original(self, *arrays, bos=last - bos, eos=last - eos, **options)
        self.parameters = given
        return ((last - tokens).astype(np.int32), *rest)

    return greedy


class _LastFirst:
    """NumPy, but of two equal numbers the last is sorted first."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def argsort(self, array: Any, **options: Any) -> Any:
        return array.shape[-1] - 1 - np.argsort(array[..., ::-1], **options)


def _reordering_lost(original: Any) -> Any:
    def reordered(self: Any, state: Any, rows: Any) -> Any:
        first = state[0] if isinstance(state, tuple) else state
        return original(self, state, rows) if first.shape[-2] != len(rows) else state

    return reordered


def _greedy(change: Callable[..., tuple[Any, Any, Any]]) -> Break:
    def wrong(original: Any) -> Any:
        return lambda self, *arrays, **options: change(*original(self, *arrays, **options), options["eos"])

    return wrong


def _end_token_counted(tokens: Any, lengths: Any, weights: Any, eos: int) -> tuple[Any, Any, Any]:
    return tokens, lengths + (tokens == eos).any(axis=1).astype(lengths.dtype), weights


def _padded_with_zero(tokens: Any, lengths: Any, weights: Any, eos: int) -> tuple[Any, Any, Any]:
    return np.where(np.arange(tokens.shape[1]) <= lengths[:, None], tokens, 0).astype(np.int32), lengths, weights


# ------------------------------------------------------------------------------------------------ answers


def _transposed(case: Case, answer: Arrays) -> Arrays:
    return {**answer, "gradient_0.U": answer["gradient_0.U"].swapaxes(-1, -2)}


def _axis_kept(case: Case, answer: Arrays) -> Arrays:
    return {**answer, "gradient_w_v": answer["gradient_w_v"][None]}


def _another_rounding(case: Case, answer: Arrays) -> Arrays:
    return {name: np.nextafter(array, np.inf) for name, array in answer.items()} if case.again else answer


def _too_precise(case: Case, answer: Arrays) -> Arrays:
    return {name: array.astype(np.float64) for name, array in answer.items()}


def _gradient_missing(case: Case, answer: Arrays) -> Arrays:
    return {name: array for name, array in answer.items() if name != "gradient_values"}


def _second_bias(case: Case, answer: Arrays) -> Arrays:
    return {**answer, "gradient_0.b_hr": answer["gradient_0.b"][0]}


def _almost_zero(case: Case, answer: Arrays) -> Arrays:
    return {**answer, "context": answer["context"] + 1e-30}


def _doubled_bias(case: Case, answer: Arrays) -> Arrays:
    return {**answer, "gradient_0.b": 2.0 * answer["gradient_0.b"]}


def _reshapes(original: Any) -> Any:
    def call(queries: Any, keys: Any) -> Any:
        scores = original(queries, keys)
        return scores.reshape(scores.shape[0], -1, *scores.shape[2:])

    return call


# ------------------------------------------------------------------------------------------------ training


def _loss(change: Callable[..., Any]) -> Break:
    """A loss of the original, and of what it was given."""
    return lambda original: lambda logits, targets, valid_lens=None: change(original, logits, targets, valid_lens)


def _in_both(change: Callable[..., Any]) -> dict[str, Break]:
    """The loss broken where cases call it, and where a Trainer does."""
    return {"masked_cross_entropy": _loss(change), "training.masked_cross_entropy": _loss(change)}


def _mean_over_padding(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    steps = targets.shape[1]
    count = targets.size if valid_lens is None else np.clip(valid_lens, 0, steps).sum()
    return original(logits, targets, valid_lens) * count / max(targets.size, 1)


def _mean_of_means(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    batch = len(targets)
    lens = [None] * batch if valid_lens is None else [valid_lens[row : row + 1] for row in range(batch)]
    own = [original(logits[..., row : row + 1, :, :], targets[row : row + 1], lens[row]) for row in range(batch)]
    return sum(own) / max(batch, 1)


def _padding_learned(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    return original(np.where(np.isfinite(logits), logits, 0.0), targets)


def _largest_first(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    return original(logits[..., ::-1], targets, valid_lens)


def _optimiser(change: Callable[..., Arrays]) -> Break:
    """Adam whose step is made by change(original, numbers, parameters, gradients, state)."""

    def broken(original: Any) -> Any:
        def adam(learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Any:
            numbers = (learning_rate, beta1, beta2, epsilon)
            return training.Optimiser(("m", "v"), lambda *given: change(original, numbers, *given))

        return adam

    return broken


def _with_momentum(original: Any) -> Any:
    """What moved last moves on, nine tenths as far."""

    def sgd(learning_rate: float) -> Any:
        def update(parameters: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], state: Arrays) -> Arrays:
            for name, gradient in gradients.items():
                state[f"m.{name}"] = 0.9 * state[f"m.{name}"] + gradient
            return {name: array - learning_rate * state[f"m.{name}"] for name, array in parameters.items()}

        return training.Optimiser(("m",), update)

    return sgd


def _epsilon_on_the_raw_root(original: Any, numbers: Any, parameters: Any, gradients: Any, state: Any) -> Arrays:
    rate, beta1, beta2, epsilon = numbers
    folded = epsilon / np.sqrt(1.0 - beta2 ** int(state["step"]))
    return original(rate, beta1, beta2, folded).update(parameters, gradients, state)


def _epsilon_of_keras(original: Any, numbers: Any, parameters: Any, gradients: Any, state: Any) -> Arrays:
    rate, beta1, beta2, _ = numbers
    return original(rate, beta1, beta2, 1e-7).update(parameters, gradients, state)


def _decays_ignored(original: Any, numbers: Any, parameters: Any, gradients: Any, state: Any) -> Arrays:
    return original(numbers[0], epsilon=numbers[3]).update(parameters, gradients, state)


def _bias_not_corrected(original: Any, numbers: Any, parameters: Any, gradients: Any, state: Any) -> Arrays:
    late = {**state, "step": np.array(10**9)}
    changed = original(*numbers).update(parameters, gradients, late)
    state.update({name: array for name, array in late.items() if name != "step"})
    return changed


def _clipped_by_value(original: Any) -> Any:
    def clip(gradients: Any, *, max_norm: float | None = None) -> Any:
        limit = np.inf if max_norm is None else max_norm
        return [np.clip(gradient, -limit, limit) for gradient in gradients], original(gradients)[1]

    return clip


def _clipped_one_by_one(original: Any) -> Any:
    def clip(gradients: Any, *, max_norm: float | None = None) -> Any:
        each = [original([gradient], max_norm=max_norm)[0][0] for gradient in gradients]
        return each, original(gradients)[1]

    return clip


def _norm_after_clipping(original: Any) -> Any:
    def clip(gradients: Any, *, max_norm: float | None = None) -> Any:
        clipped, _ = original(gradients, max_norm=max_norm)
        return clipped, original(clipped)[1]

    return clip


def _not_clipped(original: Any) -> Any:
    return lambda gradients, *, max_norm=None: original(gradients)


def _clipping(wrong: Break) -> dict[str, Break]:
    """Clipping broken where cases call it, and where a Trainer does."""
    return {"clip_by_global_norm": wrong, "training.clip_by_global_norm": wrong}


def _biases_twice(original: Any) -> Any:
    def found(*given: Any, **keywords: Any) -> Any:
        gradients = original(*given, **keywords)
        return {name: array * (2.0 if name.endswith(".b") else 1.0) for name, array in gradients.items()}

    return found


def _polarity_inverted(inputs: Arrays) -> Arrays:
    """The inputs with lengths and mask as one mask, inverted."""
    lens, mask, keys = (inputs.get(name) for name in ("valid_lens", "mask", "keys"))
    if (lens is None and mask is None) or (keys is None and "scores" not in inputs):
        return inputs
    rest = {name: array for name, array in inputs.items() if name not in ("valid_lens", "mask")}
    count = inputs["scores"].shape[-1] if keys is None else keys.shape[-2]
    if keys is not None and mask is not None and mask.shape[-1] not in (1, count):  # the time comes first
        count = keys.shape[0]
    mask = np.asarray(masking.attention_mask(count, lens, mask))
    heads = mask.ndim == 3 and (inputs["scores"] if keys is None else keys).ndim == 4
    return {**rest, "mask": ~(mask[:, None] if heads else mask)}


def _two_batches_swapped(inputs: Arrays) -> Arrays:
    batches = inputs["batches"].copy()
    batches[[2, 3]] = batches[[3, 2]]
    return {**inputs, "batches": batches}


def _training_on(change: Callable[[Any], Any]) -> Break:
    """Training on what change makes of each batch."""
    return lambda original: lambda trainer, batch, parameters: original(trainer, change(batch), parameters)


def _decoder_sees_padding(original: Any) -> Any:
    def call(layer: Any, tokens: Any, encoder_outputs: Any, state: Any, valid_lens: Any, **keywords: Any) -> Any:
        return original(layer, tokens, encoder_outputs, state, None, **keywords)

    return call


def _bridge_skipped(original: Any) -> Any:
    def encode(layer: Any, source: Any, valid_lens: Any, dropout_mask: Any = None) -> Any:
        outputs, state = original(layer, source, valid_lens, dropout_mask)
        if "bridge" not in layer.parts:
            return outputs, state
        outputs, both = layer.parts["encoder"](source, valid_lens, dropout_mask=dropout_mask)
        return outputs, both[..., : layer.sizes["hidden_size"]]

    return encode


def _inputs_late(original: Any) -> Any:
    def call(layer: Any, source: Any, inputs: Any, valid_lens: Any = None, **keywords: Any) -> Any:
        return original(layer, source, np.roll(inputs, 1, axis=1), valid_lens, **keywords)

    return call


# ------------------------------------------------------------------------------------------------ the saboteurs

NOTHING = ("*-no_*:*",)
"""Where an axis is empty there is nothing to be wrong about."""

CONVERTED_NOTHING = tuple(f"*-{name}:*" for name in ("no_keys", "no_queries", "no_batch"))
"""Masks of other conventions without an element."""
CLOSED = tuple(f"masked_softmax-{name}:weights" for name in ("lens_and_mask", "closed", "heads_mask", "infinite"))
HIDING = tuple(
    f"masked_softmax-{name}:*" for name in ("mask", "mask_row", "lens_and_mask", "closed", "heads_mask", "large")
)
CLIPPED = tuple(f"clip_by_global_norm-{size}:clipped.*" for size in ("plain", "tiny", "huge"))
RULES = (
    ("causal_mask", "offset", 0, ("causal_mask-offset:mask",)),
    ("window_mask", "offset", 0, ("window_mask-offset:mask",)),
    ("block_mask", "offset", 0, ("block_mask-offset:mask",)),
    ("stride_mask", "offset", 0, ("stride_mask-offset:mask",)),
    ("window_mask", "left", 2, ("window_mask-left:mask", "window_mask-right:mask")),
    ("window_mask", "right", 1, ("window_mask-left:mask", "window_mask-right:mask")),
    ("block_mask", "size", 3, ("block_mask-ones:mask",)),
    ("stride_mask", "stride", 3, ("stride_mask-one:mask",)),
)
RAGGED = ("ragged", "closed", "targets_int64", "hidden_nan", "hidden_inf", "large")
"""The cases of the loss in which some steps are open and some are not."""
DECODING = tuple(f"BahdanauDecoder-{name}" for name in ("none", "one_key", "no_keys", "greedy"))
GATED = ("GRU-none", "GRU-step", "GRU-no_steps")
LSTM_STEPS = ("LSTM-none", "LSTM-step", "LSTM-no_steps")
LUONG_STEPS = ("LuongDecoder-open", "LuongDecoder-not_fed", "LuongDecoder-no_steps")

SABOTEURS: tuple[Saboteur, ...] = (
    Saboteur(
        "scale_ignored",
        "The scale that is given is ignored.",
        ("scaled_dot_score-*",),
        red=("scaled_dot_score-scale:*",),
        broken={"scaled_dot_score": _scale_ignored},
    ),
    Saboteur(
        "scale_off",
        "The scale is off by 1e-5.",
        ("scaled_dot_score-*",),
        red=("*:*",),
        green=NOTHING,
        broken={"scaled_dot_score": _scale_off},
    ),
    Saboteur(
        "scale_missing",
        "Scores are not scaled unless a scale is given.",
        ("scaled_dot_score-*", "DotProductAttention-open"),
        red=("scaled_dot_score-*:*", "DotProductAttention-open:*"),
        green=(*NOTHING, "*-scale:*"),
        broken={"scaled_dot_score": _scale_missing, "layers.scaled_dot_score": _scale_missing},
        source="delzac/cntkx#10",
    ),
    Saboteur(
        "gradient_stopped",
        "No gradient reaches the keys.",
        ("dot_score-*",),
        red=("*:gradient_keys",),
        green=NOTHING,
        broken={"dot_score": _gradient_stopped},
    ),
    Saboteur(
        "tensor_float_32",
        "TF32 is left on: products keep 10 bits of each factor.",
        ("dot_score-*",),
        red=("*:*",),
        broken={"dot_score": _tensor_float},
        tier="float32",
    ),
    Saboteur(
        "empty_axis_guessed",
        "The size of an axis is left to be guessed: where there is nothing, it raises.",
        ("dot_score-*",),
        red=("dot_score-no_keys:*", "dot_score-no_queries:*", "dot_score-no_batch:*"),
        broken={"dot_score": _reshapes},
    ),
    Saboteur(
        "tanh_left_out",
        "The additive score has no tanh.",
        ("additive_score-*", "AdditiveAttention-open"),
        red=("additive_score-*:*", "AdditiveAttention-open:*"),
        green=NOTHING,
        broken={"additive_score": _without_tanh, "layers.additive_score": _without_tanh},
    ),
    Saboteur(
        "exponentials_unbounded",
        "The additive score is computed by exponentials, however large they become.",
        ("additive_score-*",),
        red=("additive_score-large:gradient_queries", "additive_score-large:gradient_keys"),
        broken={"additive_score": _unbounded},
    ),
    Saboteur(
        "last_block_lost",
        "The last queries, which fill no whole block, are left out of the additive score.",
        ("additive_score-*",),
        red=("*:*",),
        green=NOTHING,
        broken={"additive_score": _last_block_lost},
    ),
    Saboteur(
        "w_v_ignored",
        "Hidden features are summed without their weights.",
        ("additive_score-*",),
        red=("*:*",),
        green=NOTHING,
        broken={"additive_score": _without_w_v},
    ),
    Saboteur(
        "cosine_scale_ignored",
        "The scale of the cosines is ignored.",
        ("cosine_score-*",),
        red=("cosine_score-scale:*",),
        broken={"cosine_score": _scale_ignored},
    ),
    Saboteur(
        "norm_guarded_by_eps",
        "Norms are kept from zero by adding 1e-8.",
        ("cosine_score-*",),
        red=("*:*",),
        green=(*NOTHING, "cosine_score-huge:*"),
        broken={"scoring.direction": _eps_in_the_norm},
    ),
    Saboteur(
        "squares_underflow",
        "Lengths are of squares that single precision takes for 0.",
        ("cosine_score-*",),
        red=("cosine_score-tiny:*",),
        broken={"scoring.direction": _squares_of_single(low=True)},
    ),
    Saboteur(
        "squares_overflow",
        "Lengths are of squares that are infinite in single precision.",
        ("cosine_score-*",),
        red=("cosine_score-huge:*",),
        broken={"scoring.direction": _squares_of_single(low=False)},
    ),
    Saboteur(
        "kernel_width_ignored",
        "The width of the kernel is ignored.",
        ("gaussian_score-*",),
        red=("gaussian_score-width:*",),
        broken={"gaussian_score": _width_ignored},
    ),
    Saboteur(
        "last_positions",
        "Location scores are taken from the last positions.",
        ("location_score-*",),
        red=("location_score-plain:*", "location_score-heads:*"),
        broken={"location_score": _last_positions},
    ),
    *(
        Saboteur(
            f"{operator.removesuffix('_mask')}_{option}",
            f"The {option} of {operator} is ignored.",
            (f"{operator}-*",),
            red=red,
            broken={operator: _fixed(option, value)},
        )
        for operator, option, value, red in RULES
    ),
    Saboteur(
        "global_queries_lost",
        "Global queries attend to global keys alone.",
        ("global_mask-*",),
        red=("global_mask-plain:mask",),
        broken={"global_mask": _global_queries_lost},
    ),
    Saboteur(
        "and_for_or",
        "Masks that combine by or combine by and.",
        ("mask_or-*",),
        red=("*:mask",),
        broken={"mask_or": lambda original: reference.mask_and},
    ),
    Saboteur(
        "or_for_and",
        "Masks that combine by and combine by or.",
        ("mask_and-*",),
        red=("*:mask",),
        broken={"mask_and": lambda original: reference.mask_or},
    ),
    Saboteur(
        "key_padding_as_mask",
        "A key padding mask is taken for a mask, in which True means 'may attend'.",
        ("from_key_padding_mask-*",),
        red=("*:mask",),
        green=CONVERTED_NOTHING,
        broken={"from_key_padding_mask": _hiding_kept},
    ),
    Saboteur(
        "mask_as_key_padding",
        "A mask is taken for a key padding mask, in which True means 'hidden'.",
        ("to_key_padding_mask-*",),
        red=("*:key_padding_mask",),
        green=CONVERTED_NOTHING,
        broken={"to_key_padding_mask": _hiding_kept},
    ),
    Saboteur(
        "additive_inverted",
        "What is above the threshold is hidden.",
        ("from_additive_mask-*",),
        red=("*:mask",),
        green=CONVERTED_NOTHING,
        broken={"from_additive_mask": _hiding_kept},
    ),
    Saboteur(
        "threshold_ignored",
        "The threshold of an additive mask is always -1e4.",
        ("from_additive_mask-*",),
        red=("from_additive_mask-threshold:mask", "from_additive_mask-low_threshold:mask"),
        broken={"from_additive_mask": _threshold_ignored},
    ),
    Saboteur(
        "threshold_met",
        "What equals the threshold is open.",
        ("from_additive_mask-*",),
        red=("from_additive_mask-threshold:mask", "from_additive_mask-fills:mask"),
        broken={"from_additive_mask": _threshold_met},
    ),
    Saboteur(
        "threshold_exact",
        "The threshold is not rounded to the type of the additive mask, whose fill was.",
        ("from_additive_mask-*",),
        red=("from_additive_mask-fills:mask",),
        broken={"from_additive_mask": _threshold_exact},
        tier="bfloat16",
    ),
    Saboteur(
        "infinite_alone",
        "Only -inf hides a key.",
        ("from_additive_mask-*",),
        red=tuple(f"from_additive_mask-{name}:mask" for name in ("fills", "threshold", "low_threshold", "not_finite")),
        broken={"from_additive_mask": _infinite_alone},
    ),
    Saboteur(
        "bias_hides",
        "Only a key to whose score 0 is added is open.",
        ("from_additive_mask-*",),
        red=tuple(f"from_additive_mask-{name}:mask" for name in ("bias", "threshold", "low_threshold", "not_finite")),
        broken={"from_additive_mask": _zero_alone},
    ),
    Saboteur(
        "finite_ignored",
        "A hidden key gets -inf where the least finite number was asked for.",
        ("to_additive_mask-*",),
        red=("to_additive_mask-finite_float64:additive_mask",),
        broken={"to_additive_mask": _finite_ignored},
    ),
    Saboteur(
        "dtype_ignored",
        "A hidden key gets the least finite number of float32, whatever dtype says.",
        ("to_additive_mask-*",),
        red=("to_additive_mask-finite_float64:additive_mask",),
        broken={"to_additive_mask": _dtype_ignored},
    ),
    Saboteur(
        "dtype_overflows",
        "The least finite number of float32 becomes -inf in float16.",
        ("to_additive_mask-*",),
        red=("to_additive_mask-finite_float16:additive_mask",),
        broken={"to_additive_mask": _dtype_ignored},
        tier="float16",
    ),
    Saboteur(
        "additive_in_float32",
        "An additive mask is float32, whatever dtype says.",
        ("to_additive_mask-*",),
        red=("*:additive_mask",),
        spoiled=_in_float32,
    ),
    Saboteur(
        "nearly_the_least",
        "The least finite number is off by one in its last digit.",
        ("to_additive_mask-*",),
        red=("to_additive_mask-finite_float64:additive_mask",),
        spoiled=lambda case, answer: {
            name: np.where(np.isfinite(array), np.nextafter(array, 0.0), array) for name, array in answer.items()
        },
    ),
    Saboteur(
        "additive_turned",
        "An additive mask hides what is open.",
        ("to_additive_mask-*",),
        red=("*:additive_mask",),
        green=CONVERTED_NOTHING,
        broken={"to_additive_mask": lambda original: lambda mask, **options: original(~mask, **options)},
    ),
    Saboteur(
        "additive_fill",
        "A hidden key gets -1e9.",
        ("to_additive_mask-*",),
        red=("*:additive_mask",),
        green=CONVERTED_NOTHING,
        broken={"to_additive_mask": _filled(-1e9)},
    ),
    Saboteur(
        "mask_inverted",
        "True in the mask means hidden.",
        ("masked_softmax-*",),
        red=("*:*",),
        green=(
            *NOTHING,
            *(f"masked_softmax-{name}:*" for name in ("none", "ragged", "heads")),
            "masked_softmax-one_key:gradient_scores",
        ),
        broken={"masked_softmax": _masks(lambda mask: ~mask)},
    ),
    Saboteur(
        "polarity_inverted",
        "The mask is inverted: what may be attended to is hidden, and what is hidden is attended to.",
        ("masked_softmax-*", "AdditiveAttention-*", "DotProductAttention-*"),
        red=("*:*",),
        green=(
            *NOTHING,
            "*none:*",
            "masked_softmax-one_key:gradient_scores",
            "*-context_no_*:*",
            "*-context_block:*",
            "*-context_low:gradient_[qk]*",
            *(f"*{name}:gradient_{of}" for name in ("one_key", "large") for of in ("queries", "keys", "[Ww]_*")),
        ),
        misread=_polarity_inverted,
    ),
    Saboteur(
        "mask_shifted",
        "The mask is shifted by one key.",
        ("masked_softmax-*",),
        red=HIDING,
        broken={"masked_softmax": _masks(lambda mask: np.roll(mask, 1, -1))},
    ),
    Saboteur(
        "first_mask",
        "All heads use the mask of the first.",
        ("masked_softmax-*",),
        red=("masked_softmax-heads_mask:*",),
        broken={"masked_softmax": _masks(_first_head)},
    ),
    Saboteur(
        "finite_fill",
        "Hidden scores are filled with -1e6.",
        ("masked_softmax-*",),
        red=(*CLOSED, "masked_softmax-large:*"),
        broken={"masked_softmax": _softmax(_finite_fill)},
    ),
    Saboteur(
        "closed_row_uniform",
        "A closed row attends to all keys alike.",
        ("masked_softmax-*",),
        red=CLOSED,
        broken={"masked_softmax": _softmax(_closed_uniform)},
        source="microsoft/onnxruntime#28904",
    ),
    Saboteur(
        "closed_row_nan",
        "A closed row is NaN.",
        ("masked_softmax-*",),
        red=CLOSED,
        broken={"masked_softmax": _softmax(_closed_nan)},
        source="pytorch/pytorch#41508",
    ),
    Saboteur(
        "softmax_over_queries",
        "Weights are normalised over the queries.",
        ("masked_softmax-*",),
        red=("*:*",),
        green=NOTHING,
        broken={"masked_softmax": _softmax(_over_queries)},
    ),
    Saboteur(
        "float32_inside",
        "Scores are rounded to float32 on the way.",
        ("masked_softmax-*",),
        red=("*:*",),
        green=(*NOTHING, "masked_softmax-one_key:*", "masked_softmax-large:*"),
        broken={"masked_softmax": _softmax(_float32_inside)},
    ),
    Saboteur(
        "half_weights",
        "Weights are rounded to float16.",
        ("masked_softmax-*",),
        red=("*:weights",),
        broken={"masked_softmax": _softmax(_half_weights)},
        tier="float32",
    ),
    Saboteur(
        "small_weights_flushed",
        "Weights below 1e-10 are 0.",
        ("masked_softmax-*",),
        red=("masked_softmax-gap_*:weights",),
        broken={"masked_softmax": _softmax(_small_weights(1e-10, lambda weights: 0.0 * weights))},
        tier="float32",
    ),
    Saboteur(
        "small_weights_short",
        "Weights below 1e-13 keep eight bits.",
        ("masked_softmax-*",),
        red=("masked_softmax-gap_80:weights", "masked_softmax-gap_700:weights"),
        broken={"masked_softmax": _softmax(_small_weights(1e-13, lambda weights: _rounded(weights, "bfloat16")))},
    ),
    Saboteur(
        "gaps_bounded",
        "No score counts as more than 20 below the largest of its row.",
        ("masked_softmax-*",),
        red=("masked_softmax-gap_*:weights", "masked_softmax-large:weights"),
        broken={"masked_softmax": _softmax(_gaps_bounded)},
        tier="float32",
    ),
    Saboteur(
        "weights_kept_from_zero",
        "1e-20 is added to every weight.",
        ("masked_softmax-*",),
        red=("*:weights",),
        green=(*NOTHING, *(f"masked_softmax-{name}:weights" for name in ("none", "open", "one_key"))),
        broken={"masked_softmax": _softmax(_added)},
    ),
    Saboteur(
        "kernel_by_squares",
        "A kernel takes ‖q‖² + ‖k‖² - 2 qk for the squared distance: little is left of it where a key is near.",
        ("gaussian_score-*",),
        red=(),
        broken={"gaussian_score": _by_squares},
        touches=lambda case: case.name in ("plain", "heads", "large", "width") or case.drawn is not None,
    ),
    Saboteur(
        "argument_filled",
        "Hidden scores are filled in the caller's own array.",
        ("masked_softmax-*mask*", "masked_softmax-open"),
        red=tuple(
            f"masked_softmax-{name}:argument_scores" for name in ("mask", "mask_row", "lens_and_mask", "heads_mask")
        ),
        broken={"masked_softmax": _fills_in_place},
    ),
    Saboteur(
        "too_precise",
        "float32 comes back as float64.",
        ("masked_softmax-*",),
        red=("*:*",),
        spoiled=_too_precise,
        tier="float32",
    ),
    Saboteur(
        "first_length",
        "All queries use the length of the first.",
        ("attention_mask-*",),
        red=tuple(f"attention_mask-{name}:mask" for name in ("row_lens", "closed", "row_lens_and_mask", "heads")),
        broken={"attention_mask": _first_length},
    ),
    Saboteur(
        "length_included",
        "Key j is open where j <= valid_len.",
        ("attention_mask-*",),
        red=("attention_mask-*lens*:mask", "attention_mask-closed:mask", "attention_mask-heads:mask"),
        broken={"attention_mask": _one_too_many},
    ),
    Saboteur(
        "lengths_or_mask",
        "Lengths and mask combine by or.",
        ("attention_mask-*",),
        red=("attention_mask-*lens_and_mask:mask", "attention_mask-heads:mask"),
        broken={"attention_mask": _either},
    ),
    Saboteur(
        "dropout_on_scores",
        "Dropout acts on the scores.",
        ("attention_pooling-*",),
        red=("attention_pooling-dropout:*", "*:gradient_dropout_mask"),
        broken={"pooling.pool": _pool(_dropout_before_softmax)},
    ),
    Saboteur(
        "weights_dropped",
        "The weights returned are those after dropout.",
        ("attention_pooling-*",),
        red=(
            "attention_pooling-dropout:weights",
            "attention_pooling-dropout:gradient_scores",
            "*:gradient_dropout_mask",
        ),
        broken={"pooling.pool": _pool(_dropped_weights_returned)},
        source="pytorch/pytorch#42929",
    ),
    Saboteur(
        "dropout_ignored",
        "The dropout mask is ignored.",
        ("attention_pooling-*",),
        red=("attention_pooling-dropout:*", "*:gradient_dropout_mask"),
        green=("*:weights",),
        broken={"pooling.pool": _pool(_dropout_ignored)},
    ),
    Saboteur(
        "hidden_values_kept",
        "Hidden values are multiplied by a weight of 0.",
        ("attention_pooling-*",),
        red=tuple(f"attention_pooling-{name}:*" for name in ("hidden_nan", "hidden_inf", "infinite")),
        green=("*:weights",),
        broken={"pooling.pool": _pool(_hidden_values_kept)},
    ),
    Saboteur(
        "almost_zero",
        "What is zero comes back as 1e-30.",
        ("attention_pooling-*",),
        red=("attention_pooling-no_keys:context",),
        spoiled=_almost_zero,
    ),
    Saboteur(
        "other_bits_again",
        "What is asked again is answered with the last bit of another rounding.",
        ("dot_score-plain*", "scaled_dot_score-plain*"),
        red=(),
        spoiled=_another_rounding,
        touches=lambda case: bool(case.again),
    ),
    Saboteur(
        "gradient_missing",
        "The gradient of the values is not given.",
        ("attention_pooling-*",),
        red=("*:gradient_values",),
        spoiled=_gradient_missing,
    ),
    Saboteur(
        "gradient_withheld",
        "The gradient of the values is said not to be implemented, by a backend that has to have all.",
        ("attention_pooling-*",),
        red=("*:gradient_values",),
        withheld=("gradient_values",),
    ),
    Saboteur(
        "prepared_mask_lost",
        "The mask of a prepared memory is not used.",
        ("DotProductAttention-*",),
        red=("*:*",),
        green=(
            *NOTHING,
            *(
                f"DotProductAttention-{name}:*"
                for name in ("none", "open", "gap_*", "one_key", "dropout", "prepared_none", "scale", "context_none")
            ),
            *(f"DotProductAttention-context_{name}:*" for name in ("open", "one_key", "no_*", "scale", "block")),
            *(f"DotProductAttention-*{name}:gradient_[qk]*" for name in ("large", "low")),
        ),
        broken={"layers.DotProductAttention.attend": _memory_without_mask},
    ),
    Saboteur(
        "weights_all_the_same",
        "The weights come back, needed or not.",
        ("DotProductAttention-context_*", "DotProductAttention-open"),
        red=("DotProductAttention-context_*:output_1",),
        spoiled=lambda case, answer: {**answer, "output_1": answer["context"]} if case.options else answer,
    ),
    Saboteur(
        "closed_rows_averaged",
        "Without weights, a query that may attend to nothing gets the average of all values.",
        ("DotProductAttention-context_*", "DotProductAttention-closed"),
        red=tuple(
            f"DotProductAttention-context_{name}:{quantity}"
            for name in ("closed", "prepared", "lens_and_mask", "heads_mask")
            for quantity in ("context", "gradient_values")
        ),
        broken={"layers.DotProductAttention.attend": _alone(_average_of_a_closed_row)},
    ),
    Saboteur(
        "blocks_not_rescaled",
        "Without weights, blocks of keys are added up that were divided by e to their own largest score each.",
        ("DotProductAttention-context_*", "DotProductAttention-open"),
        red=("DotProductAttention-context_*:*",),
        green=("DotProductAttention-context_one_key:*", "DotProductAttention-context_no_*:*"),
        broken={"layers.DotProductAttention.attend": _alone(_blocks_of_their_own_largest)},
    ),
    Saboteur(
        "keys_cut_at_the_first",
        "Without weights, keys are cut off behind the last that the first sequence may attend to.",
        ("DotProductAttention-context_*", "DotProductAttention-ragged"),
        red=tuple(f"DotProductAttention-context_{name}:*" for name in ("ragged", "heads", "hidden_*", "inf*")),
        broken={"layers.DotProductAttention.attend": _alone(_keys_of_the_first)},
    ),
    Saboteur(
        "last_block_overwrites",
        "Without weights, the gradients of keys and values are those of the last block of queries, not of all.",
        ("AdditiveAttention-context_*", "AdditiveAttention-open"),
        red=tuple(f"AdditiveAttention-context_*:gradient_{name}" for name in ("keys", "values", "W_k")),
        broken={"layers.AdditiveAttention.attend": _memory_of_the_last},
    ),
    Saboteur(
        "general_identity",
        "The matrix of general attention is the identity.",
        ("GeneralAttention-open", "GeneralAttention-no_keys"),
        red=("GeneralAttention-open:*",),
        broken={"layers.GeneralAttention.prepare": _identity},
    ),
    Saboteur(
        "concat_key_first",
        "The columns of the key stand first in the matrix of concat attention.",
        ("ConcatAttention-open", "ConcatAttention-no_batch"),
        red=("ConcatAttention-open:*",),
        broken={"layers.ConcatAttention.prepare": _columns_rolled},
    ),
    Saboteur(
        "cosine_layer_unscaled",
        "Cosine attention ignores its scale.",
        ("CosineAttention-open", "CosineAttention-scale"),
        red=("CosineAttention-scale:*",),
        broken={"layers.cosine_score": _scale_ignored},
    ),
    Saboteur(
        "matrices_swapped",
        "W_k projects the queries and W_q the keys.",
        ("AdditiveAttention-none", "AdditiveAttention-prepared"),
        red=("AdditiveAttention-none:*", "AdditiveAttention-prepared:*"),
        broken={"layers.AdditiveAttention.prepare": _matrices_swapped},
    ),
    Saboteur(
        "axis_kept",
        "The gradient of a vector comes back as a matrix of one row.",
        ("AdditiveAttention-none", "AdditiveAttention-closed"),
        red=("AdditiveAttention-none:gradient_w_v", "AdditiveAttention-closed:gradient_w_v"),
        spoiled=_axis_kept,
    ),
    Saboteur(
        "gates_swapped",
        "Reset and update gate are swapped.",
        GATED,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.GRU.cell": _cell(_gates_swapped)},
    ),
    Saboteur(
        "update_inverted",
        "The update gate keeps the new state instead of the old one.",
        GATED,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.GRU.cell": _cell(_update_inverted)},
    ),
    Saboteur(
        "reset_after_off",
        "The reset gate acts before the recurrent product.",
        GATED,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.GRU.cell": _cell(_reset_before)},
    ),
    Saboteur(
        "hidden_bias_dropped",
        "The hidden bias is not added.",
        GATED,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.GRU.cell": _cell(_without_hidden_bias)},
    ),
    Saboteur(
        "upper_layers_skipped",
        "Layers above the first pass on what they read.",
        GATED,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.GRU.cell": _upper_layers_skipped},
    ),
    Saboteur(
        "padding_moves_state",
        "Padded steps move the state.",
        ("GRU-none", "GRU-ragged", "GRU-closed"),
        red=("GRU-ragged:*", "GRU-closed:*"),
        green=("*:outputs",),
        broken={"recurrent.GRU.__call__": _padding_moves_the_state},
    ),
    Saboteur(
        "padding_answers",
        "Outputs of padded steps are not 0.",
        ("GRU-none", "GRU-ragged", "GRU-closed"),
        red=("GRU-ragged:*", "GRU-closed:*"),
        green=("*:state",),
        broken={"recurrent.GRU.__call__": _padding_answers},
    ),
    Saboteur(
        "states_reversed",
        "The last states come back from the top layer down.",
        ("GRU-none", "GRU-one_step"),
        red=("GRU-none:*",),
        green=("*:outputs",),
        broken={"recurrent.GRU.__call__": _states_reversed},
    ),
    Saboteur(
        "gradient_transposed",
        "The gradient of U is transposed.",
        GATED,
        red=("*:gradient_0.U",),
        green=NOTHING,
        spoiled=_transposed,
    ),
    Saboteur(
        "bias_counted_twice",
        "The gradient of the bias is doubled, as where two biases are kept.",
        GATED,
        red=("*:gradient_0.b",),
        green=NOTHING,
        spoiled=_doubled_bias,
    ),
    Saboteur(
        "second_bias",
        "A redundant bias gets a gradient of its own.",
        GATED,
        red=tuple(f"{case}:gradient_0.b_hr" for case in GATED),
        spoiled=_second_bias,
    ),
    Saboteur(
        "embedding_scaled",
        "Embedded tokens are multiplied by the root of their size.",
        ("GRUEncoder-none", "GRUEncoder-no_*"),
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.embed": _embedding_scaled},
    ),
    Saboteur(
        "query_after_step",
        "The query is the current state instead of the previous one.",
        DECODING,
        red=("BahdanauDecoder-none:*", "BahdanauDecoder-greedy:weights"),
        green=("*:gradient_dense.b",),
        broken={"decoders.BahdanauDecoder.step": _query_after_the_step},
    ),
    Saboteur(
        "query_detached",
        "The backward of all steps leaves out what reaches a state as the query of the next step.",
        ("BahdanauDecoder-none", "BahdanauDecoder-no_keys"),
        red=("BahdanauDecoder-none:gradient_*",),
        green=("*:gradient_dense.*",),
        broken={"layers.AdditiveAttention.attend": _query_detached},
    ),
    Saboteur(
        "context_last",
        "The decoder's input is [embedding; context].",
        DECODING,
        red=("*:*",),
        green=(
            "*:gradient_dense.b",
            *(
                f"BahdanauDecoder-{name}:{part}"
                for name in ("one_key", "no_keys")
                for part in ("weights", "gradient_attention.*")
            ),
            "BahdanauDecoder-no_keys:gradient_encoder_outputs",
        ),
        broken={"recurrent.GRU.step": _context_after_embedding},
    ),
    Saboteur(
        "readout_without_bias",
        "The readout has no bias.",
        DECODING,
        red=("*:logits", "*:gradient_dense.b", "BahdanauDecoder-greedy:*"),
        broken={"decoders.linear": _without_readout_bias},
    ),
    Saboteur(
        "end_token_counted",
        "The length of a decoded sequence counts its end token.",
        ("BahdanauDecoder-greedy",),
        red=("BahdanauDecoder-greedy:lengths",),
        broken={"decoders.BahdanauDecoder.greedy": _greedy(_end_token_counted)},
    ),
    Saboteur(
        "padded_with_zero",
        "What follows the end token is 0.",
        ("BahdanauDecoder-greedy",),
        red=("BahdanauDecoder-greedy:tokens",),
        broken={"decoders.BahdanauDecoder.greedy": _greedy(_padded_with_zero)},
    ),
    Saboteur(
        "time_major_ignored",
        "Sequences whose time comes first are read as if their batch did.",
        ("DotProductAttention-time_major", "AdditiveAttention-time_major", "DotProductAttention-open"),
        red=("*-time_major:*",),
        broken={"layers.Attention.turned": _as_it_is},
    ),
    Saboteur(
        "time_major_heads",
        "Attention with several heads reads time as batch.",
        ("MultiHeadAttention-time_major", "MultiHeadAttention-no_queries"),
        red=("MultiHeadAttention-time_major:*",),
        broken={"layers.MultiHeadAttention.turned": _as_it_is},
    ),
    Saboteur(
        "location_of_the_end",
        "Location attention scores the last positions.",
        ("LocationAttention-open", "LocationAttention-one_key", "LocationAttention-no_*"),
        red=("LocationAttention-open:*",),
        green=("*:gradient_keys",),
        broken={"layers.location_score": _last_positions},
    ),
    Saboteur(
        "width_of_the_layer_ignored",
        "A kernel that is not learned has width 1.",
        ("KernelAttention-constant", "KernelAttention-width", "NadarayaWatson-width"),
        red=("*-width:*",),
        broken={"layers.KernelAttention.__init__": _constructed(width=1.0)},
    ),
    Saboteur(
        "width_for_inverse",
        "The parameter is the width itself.",
        ("KernelAttention-open", "KernelAttention-constant", "NadarayaWatson-ragged"),
        red=("KernelAttention-open:*", "NadarayaWatson-ragged:*"),
        broken={
            "layers.gaussian_score": lambda original: (
                lambda queries, keys, w=None: original(queries, keys, None if w is None else 1.0 / w)
            )
        },
    ),
    Saboteur(
        "window_ignored",
        "The window of local attention is one key wider.",
        ("LocalAttention-open", "LocalAttention-wide", "LocalAttention-no_keys"),
        red=("LocalAttention-open:*", "LocalAttention-wide:*"),
        broken={"layers.LocalAttention.attend": _sized(window=lambda sizes: sizes["window"] + 1)},
    ),
    Saboteur(
        "offset_ignored",
        "Local attention counts its queries from 0.",
        ("LocalAttention-open", "LocalAttention-offset"),
        red=("LocalAttention-offset:*",),
        broken={"layers.LocalAttention.attend": _called(offset=None)},
    ),
    Saboteur(
        "centre_fixed",
        "The predicted window stands around the query's own position.",
        ("LocalAttention-predictive_open", "LocalAttention-open"),
        red=("LocalAttention-predictive_open:*",),
        broken={"layers.LocalAttention.attend": _sized(mode=lambda sizes: "monotonic")},
    ),
    Saboteur(
        "length_of_the_padding",
        "A predicted position is a share of all keys, padding included.",
        ("LocalAttention-predictive_open", "LocalAttention-predictive_lens_and_mask"),
        red=("LocalAttention-predictive_lens_and_mask:*",),
        broken={"layers.LocalAttention.attend": _whole_length},
    ),
    Saboteur(
        "gaussian_renormalised",
        "Weights under the Gaussian are normalised again in the context.",
        ("LocalAttention-predictive_open", "LocalAttention-predictive_no_keys"),
        red=("LocalAttention-predictive_open:*",),
        green=("*:weights",),
        broken={"layers.pool": _renormalised},
    ),
    Saboteur(
        "score_inside_unscaled",
        "The score that stands inside another layer is never scaled.",
        ("*Attention-score_scaled_dot", "*Attention-score_dot", "MultiHeadAttention-open"),
        red=("LocalAttention-score_scaled_dot:*", "MultiHeadAttention-open:*"),
        green=("*:gradient_b_k", "*:gradient_b_v", "*:gradient_b_o"),
        broken={"layers.attention_layer": _unscaled_parts},
    ),
    Saboteur(
        "soft_for_hard",
        "Hard attention averages.",
        ("HardAttention-open", "HardAttention-one_key"),
        red=("HardAttention-open:*",),
        broken={"layers.HardAttention.attend": _soft},
    ),
    Saboteur(
        "noise_ignored",
        "A key that is to be drawn is the one with the highest score.",
        ("HardAttention-open", "HardAttention-noise*"),
        red=("HardAttention-noise*:*",),
        green=("*:gradient_queries", "*:gradient_keys", "*:gradient_scored*", "*:gradient_noise"),
        broken={"layers.HardAttention.attend": _called(noise=None)},
    ),
    Saboteur(
        "straight_through",
        "Gradients reach the scores of hard attention as if it were soft.",
        ("HardAttention-open", "HardAttention-no_queries"),
        red=("HardAttention-open:gradient_*",),
        green=("*:gradient_values",),
        broken={"layers.HardAttention.attend": _leaking},
    ),
    Saboteur(
        "heads_without_bias",
        "The projections of the heads have no biases.",
        ("MultiHeadAttention-open", "MultiHeadAttention-no_bias"),
        red=("MultiHeadAttention-open:*",),
        green=("*:gradient_b_k",),
        broken={"layers.MultiHeadAttention.projected": _without_bias},
    ),
    Saboteur(
        "strided_heads",
        "A head has every so manieth feature instead of a row of them.",
        ("MultiHeadAttention-open", "MultiHeadAttention-no_keys"),
        red=("MultiHeadAttention-open:*",),
        green=("*:gradient_b_k", "*:gradient_b_o"),
        broken={"layers.MultiHeadAttention.split": _strided_heads},
    ),
    Saboteur(
        "per_head_ignored",
        "The mean of the heads' weights comes back, whatever is asked for.",
        ("MultiHeadAttention-open", "MultiHeadAttention-per_head"),
        red=("MultiHeadAttention-per_head:*",),
        broken={"layers.MultiHeadAttention.attend": _called(per_head=False)},
    ),
    Saboteur(
        "head_mask_ignored",
        "Heads cannot be switched off.",
        ("MultiHeadAttention-none", "MultiHeadAttention-head_mask*"),
        red=("MultiHeadAttention-head_mask*:*",),
        green=("*:weights", "*:gradient_b_k", "*:gradient_b_o"),
        broken={"layers.MultiHeadAttention.attend": _called(head_mask=None)},
    ),
    Saboteur(
        "head_mask_of_the_first",
        "All sequences switch off the heads of the first.",
        ("MultiHeadAttention-none", "MultiHeadAttention-head_mask"),
        red=("MultiHeadAttention-head_mask:*",),
        green=("*:weights", "*:gradient_b_k", "*:gradient_b_o"),
        broken={"layers.MultiHeadAttention.attend": _head_mask_on_rows},
    ),
    Saboteur(
        "gain_for_loss",
        "The importance of a head is how much the loss falls without it.",
        ("ablation_importance-*",),
        red=("*:*",),
        broken={"ablation_importance": _inverted_ablation},
    ),
    Saboteur(
        "signs_cancel",
        "First-order importance adds up with its sign.",
        ("taylor_importance-*",),
        red=("*:*",),
        broken={"taylor_importance": _absolute_value_left_out},
    ),
    Saboteur(
        "position_offset_ignored",
        "Positions are counted from 0.",
        ("SinusoidalPositions-*", "LearnedPositions-*"),
        red=(
            "SinusoidalPositions-offset:outputs",
            "LearnedPositions-offset:outputs",
            "LearnedPositions-offset:gradient_P",
        ),
        broken={
            "layers.SinusoidalPositions.__call__": _called(offset=0),
            "layers.LearnedPositions.__call__": _called(offset=0),
        },
    ),
    Saboteur(
        "layout_ignored",
        "Sines and cosines always take turns.",
        ("SinusoidalPositions-*",),
        red=("SinusoidalPositions-concatenated:outputs",),
        broken={"layers.SinusoidalPositions.__init__": _constructed(layout="interleaved")},
    ),
    Saboteur(
        "rates_to_the_end",
        "The last rate is 1/10000, as in tensor2tensor.",
        ("SinusoidalPositions-*",),
        red=tuple(f"SinusoidalPositions-{name}:outputs" for name in ("plain", "offset", "concatenated")),
        broken={"layers.rates": _rates_to_the_end},
        source="tensorflow/tensor2tensor#1423",
    ),
    Saboteur(
        "angles_of_float32",
        "Angles are those of float32 rates.",
        ("SinusoidalPositions-*",),
        red=tuple(f"SinusoidalPositions-{name}:outputs" for name in ("plain", "offset", "concatenated")),
        broken={"layers.rates": _rates_of_one_float},
    ),
    Saboteur(
        "permutation_inverted",
        "The permutation leads from concatenated to interleaved.",
        ("position_permutation-*",),
        red=("position_permutation-of_8:permutation",),
        broken={
            "position_permutation": lambda original: lambda features: np.argsort(original(features)).astype(np.int32)
        },
    ),
    Saboteur(
        "gate_order_of_another",
        "The gates of an LSTM are read in the order i, f, o, g.",
        LSTM_STEPS,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.LSTM.cell": _lstm(_gate_order_of_another)},
    ),
    Saboteur(
        "forget_bias_added",
        "1 is added to the bias of the forget gate.",
        LSTM_STEPS,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.LSTM.cell": _lstm(_forget_bias)},
    ),
    Saboteur(
        "cells_not_squashed",
        "The output of an LSTM is made of its cells without their tanh.",
        LSTM_STEPS,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.LSTM.cell": _lstm(_cells_not_squashed)},
    ),
    Saboteur(
        "cells_first",
        "The state of an LSTM holds its cells first.",
        ("LSTM-none", "LSTM-no_steps"),
        red=("LSTM-none:*", "LSTM-no_steps:state", "LSTM-no_steps:gradient_state"),
        green=("*:outputs",),
        broken={"recurrent.LSTM.__call__": _cells_first},
    ),
    Saboteur(
        "backward_from_the_end",
        "The backward direction begins in the padding.",
        ("GRU-both_open", "GRU-both_ragged", "LSTM-both_ragged"),
        red=("*-both_ragged:*",),
        broken={"recurrent.Recurrent.run": _backward_from_the_end},
        source="apache/mxnet#19323",
    ),
    Saboteur(
        "directions_swapped",
        "Outputs hold the backward direction first.",
        ("GRU-both_none", "GRU-none"),
        red=("GRU-both_none:*",),
        green=("*:state",),
        broken={"recurrent.GRU.__call__": _directions_swapped},
    ),
    Saboteur(
        "forward_for_backward",
        "A bridge takes the forward half for the backward one.",
        ("Bridge-*",),
        red=("Bridge-concatenate_*:*state", "Bridge-project_*:*", "Bridge-backward_*:*"),
        green=("*outputs",),
        broken={"recurrent.Bridge.__call__": _halves_swapped},
    ),
    Saboteur(
        "outputs_not_summed",
        "A bridge that sums hands on the forward outputs.",
        ("Bridge-*",),
        red=("Bridge-sum_*:encoder_outputs", "Bridge-sum_*:gradient_outputs"),
        broken={"recurrent.Bridge.__call__": _outputs_not_summed},
    ),
    Saboteur(
        "one_weight_for_both",
        "Outputs and cells of an LSTM are bridged by the same weights.",
        ("Bridge-*",),
        red=("Bridge-project_lstm:*", "Bridge-backward_lstm:*"),
        green=("*outputs",),
        broken={"recurrent.Bridge.__call__": _one_weight_for_both},
    ),
    Saboteur(
        "maxout_of_halves",
        "The maxout readout takes the larger of two halves, not of two neighbours.",
        ("BahdanauDecoder-maxout", "BahdanauDecoder-one_step"),
        red=("BahdanauDecoder-maxout:*",),
        green=("*:state", "*:weights", "*:gradient_dense.b"),
        broken={"decoders.linear": _maxout_of_halves},
    ),
    Saboteur(
        "learned_start_lost",
        "A decoder whose first state is learned starts at 0.",
        ("*Decoder-initial_*",),
        red=("*Decoder-initial_learned:*",),
        green=(
            "*:gradient_dense.b",
            "FixedContextDecoder-initial_learned:weights",
            "LuongDecoder-initial_learned:state.position",
        ),
        broken={"decoders.Decoder.start": _started(_learned_lost)},
    ),
    Saboteur(
        "zero_start_ignored",
        "A decoder that should start at 0 does not.",
        ("*Decoder-initial_*",),
        red=("*Decoder-initial_zero:*",),
        green=(
            "*:gradient_dense.b",
            "FixedContextDecoder-initial_zero:weights",
            "LuongDecoder-initial_zero:state.position",
        ),
        broken={"decoders.Decoder.start": _started(_zero_started)},
    ),
    Saboteur(
        "query_before_step",
        "Luong's decoder attends with the previous state.",
        LUONG_STEPS,
        red=("LuongDecoder-open:*", "LuongDecoder-not_fed:*"),
        green=("*:gradient_dense.b", "*:state.position", "LuongDecoder-not_fed:state.rnn"),
        broken={"decoders.LuongDecoder.advance": _previous_query},
    ),
    Saboteur(
        "nothing_fed",
        "Luong's decoder does not feed back its attentional vector.",
        LUONG_STEPS,
        red=("LuongDecoder-open:*",),
        green=("*:gradient_dense.b", "*:state.position"),
        broken={
            "decoders.LuongDecoder.advance": _stepped(
                lambda state: state._replace(attentional=np.zeros_like(state.attentional))
            )
        },
    ),
    Saboteur(
        "output_before_context",
        "W_c reads the top output first, then the context.",
        LUONG_STEPS,
        red=("LuongDecoder-open:*", "LuongDecoder-not_fed:*"),
        green=(
            "*:gradient_dense.b",
            "*:state.position",
            "LuongDecoder-not_fed:state.rnn",
            "LuongDecoder-not_fed:weights",
        ),
        broken={"decoders.joined": _joined_reversed},
    ),
    Saboteur(
        "position_stands",
        "The window of Luong's decoder stays where it began.",
        ("LuongDecoder-monotonic", "LuongDecoder-no_steps"),
        red=("LuongDecoder-monotonic:*",),
        green=("*:gradient_dense.b",),
        broken={"decoders.LuongDecoder.advance": _position_stands},
    ),
    Saboteur(
        "mean_for_last",
        "The fixed context is the mean of the encoder's outputs.",
        ("FixedContextDecoder-ragged", "FixedContextDecoder-one_key", "FixedContextDecoder-no_keys"),
        red=("FixedContextDecoder-ragged:*",),
        green=("*:weights", "*:gradient_dense.b"),
        broken={"decoders.FixedContextDecoder.advance": _mean_context},
    ),
    Saboteur(
        "penalty_ignored",
        "Hypotheses are ranked by the sum of their logarithms alone.",
        ("BahdanauDecoder-beam*",),
        red=("BahdanauDecoder-beam_penalty:scores",),
        broken={"decoders.penalty": _penalty_lost},
    ),
    Saboteur(
        "mean_for_penalty",
        "Hypotheses are ranked by a power of their length.",
        ("BahdanauDecoder-beam*",),
        red=("BahdanauDecoder-beam_penalty:*",),
        broken={"decoders.penalty": _penalty_without_five},
    ),
    Saboteur(
        "last_of_ties",
        "Of equal tokens and hypotheses, decoding takes the last.",
        ("*Decoder-greedy", "*Decoder-beam*", "*Decoder-tie_*"),
        red=("*Decoder-tie_*:tokens", "*Decoder-tie_*:weights", "*Decoder-tie_end:*"),
        green=("FixedContextDecoder-tie_greedy:weights", "*-tie_beam:weights"),
        broken={"decoders.Decoder.greedy": _last_of_equal_tokens, "decoders.np": lambda original: _LastFirst()},
    ),
    Saboteur(
        "states_not_reordered",
        "A hypothesis goes on from the state of another.",
        ("BahdanauDecoder-beam", "LuongDecoder-beam", "BahdanauDecoder-greedy"),
        red=("*-beam:scores", "*-beam:weights", "LuongDecoder-beam:tokens"),
        broken={"decoders.Decoder.reordered": _reordering_lost, "decoders.LuongDecoder.reordered": _reordering_lost},
        source="huggingface/transformers#46612",
    ),
    Saboteur(
        "width_of_one",
        "Beam search keeps one hypothesis, and gives it as all of the best.",
        ("BahdanauDecoder-beam*", "LuongDecoder-beam"),
        red=("*-beam*:*",),
        broken={"decoders.Decoder.beam": _one_hypothesis},
        source="facebookresearch/ParlAI#2047",
    ),
    Saboteur(
        "decoder_score_unscaled",
        "The score of a decoder's attention is never scaled.",
        ("BahdanauDecoder-score_scaled_dot", "BahdanauDecoder-score_dot"),
        red=("BahdanauDecoder-score_scaled_dot:*",),
        green=("*:gradient_dense.b",),
        broken={"decoders.attention_layer": _unscaled_parts},
    ),
    Saboteur(
        "cells_lost",
        "The cells of a decoder's LSTM begin at 0 in every step.",
        ("*Decoder-lstm", "BahdanauDecoder-one_step"),
        red=("*Decoder-lstm:*",),
        green=("*:gradient_dense.b", "*:state.position", "FixedContextDecoder-lstm:weights"),
        broken={"recurrent.LSTM.step": _cells_lost},
    ),
    Saboteur(
        "bos_ignored",
        "Greedy decoding begins with token 0.",
        ("BahdanauDecoder-greedy", "LuongDecoder-greedy"),
        red=("*-greedy:weights",),
        broken={"decoders.Decoder.greedy": _called(bos=0)},
    ),
    Saboteur(
        "layer_scale_ignored",
        "Dot-product attention ignores its scale.",
        ("DotProductAttention-open", "DotProductAttention-scale"),
        red=("DotProductAttention-scale:*",),
        broken={"layers.scaled_dot_score": _scale_ignored},
    ),
    Saboteur(
        "window_everywhere",
        "A predicted window of Luong's decoder is as wide as the sequence.",
        ("LuongDecoder-predictive", "LuongDecoder-open"),
        red=("LuongDecoder-predictive:*",),
        green=("*:gradient_dense.b", "*:state.position"),
        broken={"layers.LocalAttention.attend": _sized(window=lambda sizes: 50)},
    ),
    Saboteur(
        "mean_over_padding",
        "The loss is the mean over all steps, padding too.",
        ("masked_cross_entropy-*", "training-short"),
        red=(*(f"masked_cross_entropy-{name}:*" for name in RAGGED), "training-short:*"),
        broken=_in_both(_mean_over_padding),
        source="PaddlePaddle/Paddle#23708",
    ),
    Saboteur(
        "mean_of_means",
        "The loss is the mean over sentences of the mean over each one's steps, as textbooks have it.",
        ("masked_cross_entropy-*", "training-short"),
        red=(*(f"masked_cross_entropy-{name}:*" for name in RAGGED), "training-short:*"),
        broken=_in_both(_mean_of_means),
    ),
    Saboteur(
        "padding_learned",
        "The loss counts the steps behind the end.",
        ("masked_cross_entropy-*", "training-short"),
        red=(*(f"masked_cross_entropy-{name}:*" for name in (*RAGGED, "no_open")), "training-short:*"),
        broken=_in_both(_padding_learned),
    ),
    Saboteur(
        "vocabulary_reversed",
        "The loss reads the vocabulary from its end.",
        ("masked_cross_entropy-none", "masked_cross_entropy-no_open"),
        red=("masked_cross_entropy-none:*",),
        broken=_in_both(_largest_first),
    ),
    Saboteur(
        "with_momentum",
        "Gradient descent keeps a momentum of 0.9.",
        ("training-short", "training-short_sgd", "sgd-*"),
        red=("training-short_sgd:*", "sgd-plain*:*", "sgd-r*:*", "sgd-huge:*"),
        broken={"sgd": _with_momentum},
    ),
    Saboteur(
        "epsilon_on_the_raw_root",
        "Adam adds epsilon to the root of v before its correction, as Keras and MXNet do.",
        ("adam-*",),
        red=("adam-[!hz]*:*",),
        broken={"adam": _optimiser(_epsilon_on_the_raw_root)},
        source="tensorflow/tensorflow#35102",
    ),
    Saboteur(
        "epsilon_of_keras",
        "Adam takes the epsilon 1e-7.",
        ("adam-*",),
        red=("adam-[!hz]*:*",),
        broken={"adam": _optimiser(_epsilon_of_keras)},
    ),
    Saboteur(
        "decays_ignored",
        "Adam takes 0.9 and 0.999 for its decays, whatever they are.",
        ("adam-*",),
        red=("adam-decays:*",),
        broken={"adam": _optimiser(_decays_ignored)},
    ),
    Saboteur(
        "moments_not_corrected",
        "Adam does not correct its moments for their start at 0.",
        ("training-short", "training-short_sgd", "adam-*"),
        red=("training-short:*", "adam-[!z]*:*"),
        broken={"adam": _optimiser(_bias_not_corrected)},
        source="EurekaLabsAI/micrograd#2",
    ),
    Saboteur(
        "clipped_by_value",
        "Each entry of a gradient is clipped by itself.",
        ("clip_by_global_norm-*",),
        red=CLIPPED,
        broken=_clipping(_clipped_by_value),
    ),
    Saboteur(
        "clipped_one_by_one",
        "Each gradient is clipped by its own norm.",
        ("clip_by_global_norm-*",),
        red=CLIPPED,
        broken=_clipping(_clipped_one_by_one),
        source="carpedm20/MemN2N-tensorflow#19",
    ),
    Saboteur(
        "not_clipped",
        "Gradients are not clipped.",
        ("training-short_sgd", "training-unclipped", "clip_by_global_norm-*"),
        red=("training-short_sgd:*", *CLIPPED),
        broken=_clipping(_not_clipped),
    ),
    Saboteur(
        "norm_after_clipping",
        "The norm that is told is that of the clipped gradients.",
        ("clip_by_global_norm-*",),
        red=tuple(own.replace("clipped.*", "norm") for own in CLIPPED),
        broken=_clipping(_norm_after_clipping),
    ),
    Saboteur(
        "biases_twice",
        "Biases get twice their gradient, as where an input and a hidden bias both get it.",
        ("training-short_sgd",),
        red=("training-short_sgd:*",),
        broken={"training.differentiation.gradients": _biases_twice},
    ),
    Saboteur(
        "two_batches_swapped",
        "Two batches change places.",
        ("training-short",),
        red=("training-short:*",),
        misread=_two_batches_swapped,
    ),
    Saboteur(
        "masks_not_trained_with",
        "Training drops nothing, whatever the masks say.",
        ("training-dropout", "training-short"),
        red=("training-dropout:*",),
        broken={"training.Trainer.loss": _training_on(lambda batch: batch._replace(**dict.fromkeys(MASKS)))},
    ),
    Saboteur(
        "training_sees_padding",
        "Training reads the padding of the sources.",
        ("training-short",),
        red=("training-short:*",),
        broken={"training.Trainer.loss": _training_on(lambda batch: batch._replace(source_lens=None))},
    ),
    Saboteur(
        "decoder_sees_padding",
        "A translator's decoder attends to the padding of the sources.",
        ("Translator-none", "Translator-ragged"),
        red=("Translator-ragged:*",),
        green=("*:gradient_decoder.dense.b",),
        broken={"decoders.Decoder.__call__": _decoder_sees_padding},
    ),
    Saboteur(
        "bridge_skipped",
        "A translator's decoder starts with the forward direction alone.",
        ("Translator-both", "Translator-none"),
        red=("Translator-both:*",),
        green=("*:gradient_decoder.dense.b",),
        broken={"translation.Translator.encode": _bridge_skipped},
    ),
    Saboteur(
        "inputs_late",
        "A translator's decoder reads each token a step late.",
        ("Translator-none", "Translator-one_step"),
        red=("Translator-none:*",),
        green=("*:gradient_decoder.dense.b",),
        broken={"translation.Translator.__call__": _inputs_late},
    ),
)
