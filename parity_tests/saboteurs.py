"""Deliberately wrong implementations, as data: each is the reference with one thing broken, and says what must be red.

A court that passes one of them is worth nothing. They run in this process, on the cases that they name; a backend that
dies or hangs is another matter, and needs a process (see `parity_tests.launch`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from unittest import mock

import numpy as np

from attention_core import reference
from attention_core.reference import masking, recurrent
from attention_core.reference.arrays import align, linear
from parity_tests.cases import DECODER, Arrays, Case, all_cases, is_floating
from parity_tests.comparison import Verdict, judge
from parity_tests.expected import computed_gradients, computed_outputs, cotangents, expected
from parity_tests.recordings import Cell, Recording, key

Break = Callable[[Any], Any]


@dataclass(frozen=True)
class Saboteur:
    """A wrong implementation.

    broken maps a name in `attention_core.reference` to a function that takes the original and returns what replaces it;
    spoiled changes a whole answer. cases are patterns of the cases it is tried on; red and green are patterns of
    case:quantity: what matches red and not green has to be red, and all else green.
    """

    name: str
    sentence: str
    cases: tuple[str, ...]
    red: tuple[str, ...]
    green: tuple[str, ...] = ()
    broken: Mapping[str, Break] | None = None
    spoiled: Callable[[Case, Arrays], Arrays] | None = None
    tier: str = "float64"

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
    chosen = [case for case in cases or all_cases() if _matches(case.id, saboteur.cases)]
    cells = [(case, saboteur.tier) for case in chosen if saboteur.tier in case.tiers]
    recording = Recording(saboteur.name, "cpu")
    for cell in cells:
        recording.status[key(cell)], recording.cells[key(cell)] = _answer(saboteur, *cell)
    return cells, recording


def _answer(saboteur: Saboteur, case: Case, tier: str) -> tuple[dict[str, Any], Arrays]:
    inputs, parameters = case.at(tier)
    before = {name: array.copy() for name, array in inputs.items()}
    factors = cotangents(case, tier)
    try:
        with in_place_of_the_reference(saboteur), np.errstate(all="ignore"):
            answer = computed_outputs(case, inputs, parameters)
            gradients = computed_gradients(case, before, parameters, factors) if case.gradients else {}
    except Exception as error:  # as in a worker, whatever an implementation raises costs its own cell
        return {"status": "error", "message": f"{type(error).__name__}: {error}"}, {}
    changed = [name for name in before if not np.array_equal(inputs[name], before[name], equal_nan=True)]
    answer |= {f"gradient_{name}": array for name, array in gradients.items()}
    answer = {name: array.astype(tier) if is_floating(array) else array for name, array in answer.items()}
    return {"status": "ok", "changed": changed}, saboteur.spoiled(case, answer) if saboteur.spoiled else answer


def judged(saboteur: Saboteur, cells: Sequence[Cell], recording: Recording) -> Caught:
    """Hold the saboteur's answers against the reference, and the verdicts against what it states."""
    verdicts: list[Verdict] = [verdict for cell in cells for verdict in judge(cell, expected(*cell), recording)]
    red = [f"{verdict.case}:{verdict.quantity}" for verdict in verdicts if verdict.red]
    let_through = [
        f"{verdict.case}:{verdict.quantity}"
        for verdict in verdicts
        if not verdict.red and saboteur.must_be_red(verdict.case, verdict.quantity)
    ]
    # A place that no verdict speaks of is no less let through.
    let_through += [pattern for pattern in saboteur.red if not any(fnmatchcase(place, pattern) for place in red)]
    accused = [place for place in red if not saboteur.must_be_red(*place.split(":"))]
    return Caught(saboteur, Counter(verdict.check for verdict in verdicts if verdict.red), let_through, accused)


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


def _width_ignored(original: Any) -> Any:
    return lambda queries, keys, w=None: original(queries, keys)


def _last_positions(original: Any) -> Any:
    return lambda num_keys, queries: queries[..., queries.shape[-1] - num_keys :]


def _without_tanh(original: Any) -> Any:
    def score(queries: Any, keys: Any, w_v: Any) -> Any:
        hidden = np.asarray(queries)[..., :, None, :] + np.asarray(keys)[..., None, :, :]
        return (hidden * align(np.asarray(w_v), 1, hidden.ndim)).sum(axis=-1)

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


# ------------------------------------------------------------------------------------------------ pooling and layers


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
    def attend(self: Any, queries: Any, memory: Any, *, dropout_mask: Any = None) -> Any:
        return original(self, queries, memory._replace(mask=None), dropout_mask=dropout_mask)

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


# ------------------------------------------------------------------------------------------------ recurrent layers


def _cell(change: Callable[..., Any]) -> Break:
    """One step of one layer, by another formula of its parameters: W, U, b, b_hn, inputs, state."""

    def wrong(original: Any) -> Any:
        def cell(self: Any, layer: int, inputs: Any, state: Any) -> Any:
            return change(*(self.parameters[f"{layer}.{name}"] for name in ("W", "U", "b", "b_hn")), inputs, state)

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
    def cell(self: Any, layer: int, inputs: Any, state: Any) -> Any:
        return original(self, layer, inputs, state) if layer == 0 else inputs

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


def _embedding_scaled(original: Any) -> Any:
    return lambda title, tokens, table: original(title, tokens, table) * np.sqrt(table.shape[-1])


# ------------------------------------------------------------------------------------------------ decoders


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


# ------------------------------------------------------------------------------------------------ the saboteurs

NOTHING = ("*-no_*:*",)
"""Where an axis is empty there is nothing to be wrong about."""

CLOSED = tuple(f"masked_softmax-{name}:weights" for name in ("lens_and_mask", "closed", "heads_mask", "infinite"))
HIDING = tuple(
    f"masked_softmax-{name}:*" for name in ("mask", "mask_row", "lens_and_mask", "closed", "heads_mask", "large")
)
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
DECODING = tuple(f"BahdanauDecoder-{name}" for name in ("none", "one_key", "no_keys", "greedy"))
GATED = ("GRU-none", "GRU-step", "GRU-no_steps")

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
        green=NOTHING,
        broken={"scoring.direction": _eps_in_the_norm},
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
    ),
    Saboteur(
        "closed_row_nan",
        "A closed row is NaN.",
        ("masked_softmax-*",),
        red=CLOSED,
        broken={"masked_softmax": _softmax(_closed_nan)},
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
        "gradient_missing",
        "The gradient of the values is not given.",
        ("attention_pooling-*",),
        red=("*:gradient_values",),
        spoiled=_gradient_missing,
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
                for name in ("none", "open", "one_key", "dropout", "prepared_none", "scale")
            ),
            "DotProductAttention-large:gradient_[qk]*",
        ),
        broken={"layers.DotProductAttention.attend": _memory_without_mask},
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
        broken={"recurrent.GRU._cell": _cell(_gates_swapped)},
    ),
    Saboteur(
        "update_inverted",
        "The update gate keeps the new state instead of the old one.",
        GATED,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.GRU._cell": _cell(_update_inverted)},
    ),
    Saboteur(
        "reset_after_off",
        "The reset gate acts before the recurrent product.",
        GATED,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.GRU._cell": _cell(_reset_before)},
    ),
    Saboteur(
        "hidden_bias_dropped",
        "The hidden bias is not added.",
        GATED,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.GRU._cell": _cell(_without_hidden_bias)},
    ),
    Saboteur(
        "upper_layers_skipped",
        "Layers above the first pass on what they read.",
        GATED,
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.GRU._cell": _upper_layers_skipped},
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
        broken={"decoders.GRU.step": _context_after_embedding},
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
)
