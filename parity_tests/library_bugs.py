"""Mistakes that published libraries have made, as saboteurs: each names the issue or pull request that describes it.

Each is the reference with that mistake, under the condition under which the library made it: where the condition is one
of sizes, of options or of a layout, the cases that it touches are those for which it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_core.reference.arrays import promote
from attention_core.reference.layers import Memory
from attention_core.reference.masking import attention_mask, softmax_over
from attention_core.reference.pooling import pool
from parity_tests.cases import Arrays, Case
from parity_tests.invocation import SECOND
from parity_tests.saboteurs import (
    NOTHING,
    SABOTEURS,
    Break,
    Saboteur,
    _alone,
    _constructed,
    _in_both,
    _lstm,
    _lstm_step,
    _optimiser,
    _plain_softmax,
)

# ------------------------------------------------------------------------------------------------ what a case holds

Holds = Callable[[Case, Arrays], bool]
"""Whether something is so of a case, and of the arguments of a call of it, by name."""


def _where(*all_of: Holds) -> Callable[[Case], bool]:
    """Whether a case has a call of which all of it holds."""

    def touches(case: Case) -> bool:
        first = {name: array for name, array in case.inputs.items() if not name.startswith(SECOND)}
        second = {name.removeprefix(SECOND): case.inputs[name] for name in case.inputs if name.startswith(SECOND)}
        calls = (first, {**first, **second}) if case.twice else (first,)
        shared = ({**call, **{name: call[other] for name, other in case.shared.items()}} for call in calls)
        return any(all(holds(case, call) for holds in all_of) for call in shared)

    return touches


def _first(inputs: Arrays) -> np.ndarray:
    """The first argument: its first axis is that of sequences, if time is not."""
    return next(iter(inputs.values()))


def _sequences(case: Case, inputs: Arrays) -> int:
    """The number of sequences of an attention layer's call."""
    return inputs["queries"].shape[1 if case.config.get("time_major") else 0]


def _steps(case: Case, array: np.ndarray) -> int:
    """The number of queries or keys of an attention layer's call."""
    return array.shape[0 if case.config.get("time_major") else -2]


def _allowed(case: Case, inputs: Arrays) -> np.ndarray | None:
    """What lengths and mask leave open, None where there are none of either."""
    keys = inputs["scores"].shape[-1] if "scores" in inputs else _steps(case, inputs["keys"])
    return attention_mask(keys, inputs.get("valid_lens"), inputs.get("mask"))


def _hides(case: Case, inputs: Arrays) -> bool:
    """Whether a key is hidden from a query."""
    allowed = _allowed(case, inputs)
    hidden = allowed is not None and not allowed.all()
    return hidden or bool(np.isneginf(inputs.get("scores", np.zeros(0))).any())


def _by_sequence(case: Case, inputs: Arrays) -> bool:
    """Whether there is one length for each sequence."""
    return "valid_lens" in inputs and inputs["valid_lens"].ndim == 1


def _of_heads(case: Case, inputs: Arrays) -> bool:
    """Whether several heads attend, in more than no sequences."""
    return case.operator == "MultiHeadAttention" and case.config["num_heads"] > 1 and _sequences(case, inputs) > 0


def _mask_of_sequences(case: Case, inputs: Arrays) -> bool:
    """Whether all heads share a mask, and sequences do not."""
    allowed = _allowed(case, inputs) if _of_heads(case, inputs) else None
    return allowed is not None and allowed.ndim == 3 and bool((allowed != allowed[:1]).any())


def _several_queries(case: Case, inputs: Arrays) -> bool:
    return _steps(case, inputs["queries"]) > 1


def _as_many_heads(case: Case, inputs: Arrays) -> bool:
    """Whether there are as many sequences as heads."""
    return _sequences(case, inputs) == case.config["num_heads"]


def _context_alone(case: Case, inputs: Arrays) -> bool:
    """Whether dot-product attention is asked for the context alone, of some keys."""
    alone = case.options.get("need_weights") is False
    return case.operator == "DotProductAttention" and alone and _steps(case, inputs["keys"]) > 0


def _of_one_scale(case: Case, inputs: Arrays) -> bool:
    """Whether inner products of more than one feature are scaled as features say."""
    if case.operator == "MultiHeadAttention":
        size = case.config.get("hidden_size", case.config["query_size"])
        return case.config.get("score", "scaled_dot") == "scaled_dot" and size > case.config["num_heads"]
    given = case.config.get("scale", case.options.get("scale"))
    return given is None and inputs["queries"].shape[-1] > 1


def _both_directions(case: Case, inputs: Arrays) -> bool:
    """Whether a recurrent layer runs in both directions, over some steps."""
    return bool(case.config.get("bidirectional")) and _first(inputs).shape[1] > 0


def _several_sequences(case: Case, inputs: Arrays) -> bool:
    return _first(inputs).shape[0] > 1


def _ragged(case: Case, inputs: Arrays) -> bool:
    """Whether a sequence of a recurrent layer ends before its last step, and has a first one."""
    steps, lens = _first(inputs).shape[1], inputs.get("valid_lens")
    return lens is not None and bool(((lens > 0) & (lens < steps)).any())


def _positions(case: Case, inputs: Arrays) -> bool:
    """Whether there is a position behind the first."""
    array = inputs["inputs"]
    return array.size > 0 and array.shape[-2] + case.options.get("offset", 0) > 1


# ------------------------------------------------------------------------------------------------ masks


SOFTMAX = ("masking.softmax_over", "pooling.softmax_over")
"""Where weights are made of scores: for the operator, and for what pools."""


def _leaking(change: Callable[[Any, Any], Any]) -> dict[str, Break]:
    """A softmax that leaves weight on hidden keys, and values that are read for it."""
    softmax: dict[str, Break] = dict.fromkeys(SOFTMAX, lambda _: change)
    return {**softmax, "pooling.average": _all_averaged, "layers.cleared": _nothing_cleared}


def _all_averaged(original: Any) -> Any:
    def average(weights: Any, values: Any, allowed: Any, dropout_mask: Any = None) -> Any:
        return (weights if dropout_mask is None else weights * promote(dropout_mask)) @ values

    return average


def _nothing_cleared(original: Any) -> Any:
    return lambda keys, values, valid_lens, mask: Memory(keys, values, original(keys, values, valid_lens, mask).mask)


def _filled_near_zero(scores: Any, allowed: Any) -> Any:
    return _plain_softmax(np.where(allowed, scores, 1e-9))


def _mask_added(scores: Any, allowed: Any) -> Any:
    return _plain_softmax(scores + allowed)


def _over_all_queries(scores: Any, allowed: Any) -> Any:
    """Weights normalised over all queries of all sequences, for each key."""
    rows = (*scores.shape[:-3], scores.shape[-3] * scores.shape[-2], scores.shape[-1])
    if rows[-2] == 0:
        return scores
    turned = (np.broadcast_to(array, scores.shape).reshape(rows).swapaxes(-1, -2) for array in (scores, allowed))
    return softmax_over(*turned).swapaxes(-1, -2).reshape(scores.shape)


def _lengths_lost(original: Any) -> Any:
    def call(num_keys: int, valid_lens: Any = None, mask: Any = None) -> Any:
        by_sequence = valid_lens is not None and valid_lens.ndim == 1
        return original(num_keys, None if by_sequence else valid_lens, mask)

    return call


def _bottom_right(original: Any) -> Any:
    return lambda num_queries, num_keys, offset=0: original(
        num_queries, num_keys, offset=max(num_keys - num_queries, 0)
    )


def _ends_elsewhere(case: Case, inputs: Arrays) -> bool:
    """Whether the last query does not stand at the last key."""
    sizes = case.options
    return case.operator == "causal_mask" and max(sizes["num_keys"] - sizes["num_queries"], 0) != sizes.get("offset", 0)


def _plane_behind(original: Any) -> Any:
    """A mask of one head is read as if it had all: head h of sequence b meets the plane that stands at b + h."""

    def call(scores: Any, valid_lens: Any, mask: Any) -> Any:
        by_length = mask is None and scores.ndim == 4
        mask = attention_mask(scores.shape[-1], valid_lens, mask)
        if mask is None or scores.ndim < 4 or (mask.ndim < 4 and not by_length):
            return original(scores, None, mask)
        mask = mask[:, None] if by_length else mask
        if mask.shape[1] == 1:
            mask = mask[np.add.outer(np.arange(len(mask)), np.arange(scores.shape[1])) % max(len(mask), 1), 0]
        return original(scores, None, mask)

    return call


def _mask_of_one_head(case: Case, inputs: Arrays) -> bool:
    first, allowed = inputs.get("scores", inputs.get("queries")), _allowed(case, inputs)
    if first is None or allowed is None or first.ndim < 4 or first.shape[1] < 2:
        return False
    return (allowed.ndim == 3 or allowed.shape[1] == 1) and bool((allowed != allowed[:1]).any())


# ------------------------------------------------------------------------------------------------ heads


def _heads_meet(change: Callable[[Any, Memory], Any]) -> Break:
    """Several heads whose mask is another, made of the layer and the memory where all heads share one."""

    def wrong(original: Any) -> Any:
        def attend(self: Any, queries: Any, memory: Any, **given: Any) -> Any:
            shared = memory.mask is not None and memory.mask.shape[1] == 1
            return original(self, queries, memory._replace(mask=change(self, memory)) if shared else memory, **given)

        return attend

    return wrong


def _tiled(layer: Any, memory: Memory) -> Any:
    """The masks of all sequences one after the other, again and again, for sequences and heads in this order."""
    assert memory.mask is not None
    batch, heads = memory.values.shape[-4], layer.sizes["heads"]
    masks = np.broadcast_to(memory.mask[:, 0], (batch, *memory.mask.shape[2:]))
    return masks[np.arange(batch * heads).reshape(batch, heads) % max(batch, 1)]


def _on_heads(layer: Any, memory: Memory) -> Any:
    """The mask without an axis of heads, whose first axis then meets that of heads."""
    mask = memory.mask
    assert mask is not None
    return mask.swapaxes(0, 1) if mask.shape[0] == layer.sizes["heads"] == memory.values.shape[-4] else mask


def _split_as_it_lies(original: Any) -> Any:
    def split(self: Any, array: Any) -> Any:
        *lead, steps, _ = array.shape
        return array.reshape(*lead, self.sizes["heads"], steps, self.sizes["head_size"])

    return split


def _joined_as_they_lie(original: Any) -> Any:
    """What is projected in the end are the heads' outputs, the axis of heads still before that of queries."""

    def projected(self: Any, which: str, inputs: Any) -> Any:
        if which == "o":
            apart = inputs.reshape(*inputs.shape[:-1], self.sizes["heads"], self.sizes["head_size"])
            inputs = apart.swapaxes(-2, -3).reshape(inputs.shape)
        return original(self, which, inputs)

    return projected


def _scaled_by_the_model(original: Any) -> Any:
    def __init__(self: Any, *arguments: Any, **config: Any) -> None:
        original(self, *arguments, **config)
        if "scale" in self.scored.sizes and self.sizes["score"] == "scaled_dot":
            self.scored.sizes = {**self.scored.sizes, "scale": self.sizes["query_size"] ** -0.5}

    return __init__


def _scaled_by_all_features(case: Case, inputs: Arrays) -> bool:
    size = case.config.get("hidden_size", case.config["query_size"])
    return (
        case.config.get("score", "scaled_dot") == "scaled_dot"
        and size != case.config["query_size"] * (case.config["num_heads"])
    )


# ------------------------------------------------------------------------------------------------ scores


def _divided_by_the_scale(original: Any) -> Any:
    def score(queries: Any, keys: Any, *, scale: float | None = None) -> Any:
        return original(queries, keys, scale=max(queries.shape[-1], 1) ** 0.5 if scale is None else scale)

    return score


def _first_features(original: Any) -> Any:
    def score(queries: Any, keys: Any, *, scale: float | None = None) -> Any:
        scale = max(queries.shape[-1], 1) ** -0.5 if scale is None else scale
        return original(queries[..., :64], keys[..., :64], scale=scale)

    return score


def _many_features(case: Case, inputs: Arrays) -> bool:
    return inputs["queries"].shape[-1] > 64


# ------------------------------------------------------------------------------------------------ fused kernels


def _padding_counted(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """Keys and values of zeros fill the last block of 64, and are attended to like others."""
    top = np.maximum(np.where(allowed, scores.real, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf), 0.0)
    below = np.where(allowed, np.exp(np.where(allowed, scores - top, 0.0)), 0.0).sum(axis=-1, keepdims=True)
    whole = below + -scores.shape[-1] % 64 * np.exp(-top)
    return context * (below / np.where(whole.real == 0.0, 1.0, whole))


def _as_many_keys_as_queries(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    queries, keys = scores.shape[-2:]
    return pool(scores, values, allowed & (np.arange(keys) < queries), None)[0] if queries < keys else context


def _more_keys(case: Case, inputs: Arrays) -> bool:
    return _steps(case, inputs["queries"]) < _steps(case, inputs["keys"])


def _never_written(original: Any) -> Any:
    def attend(self: Any, queries: Any, memory: Any, **given: Any) -> Any:
        context, weights = original(self, queries, memory, **given)
        few = self.turned(queries).shape[-2] <= 8 and memory.keys.shape[-2] >= 1024
        return context * 0.0 if few else context, weights

    return attend


def _two_passes(case: Case, inputs: Arrays) -> bool:
    return _steps(case, inputs["queries"]) <= 8 and _steps(case, inputs["keys"]) >= 1024


LOWEST = -5e4
"""What a running maximum of inner products, before they are scaled, begins with."""


def _largest_from_a_number(original: Any) -> Any:
    def attend(self: Any, queries: Any, memory: Any, *, need_weights: bool = True, **given: Any) -> Any:
        found = original(self, queries, memory, need_weights=need_weights, **given)
        if need_weights:
            return found
        scale = self.sizes["scale"] if self.sizes["scale"] is not None else max(queries.shape[-1], 1) ** -0.5
        scores = self.score(self.turned(promote(queries)), memory.keys)
        allowed = scores.real != -np.inf
        allowed = allowed if memory.mask is None else allowed & memory.mask
        top = np.where(allowed, scores.real, -np.inf).max(axis=-1, keepdims=True, initial=LOWEST * scale)
        parts = np.where(allowed, np.exp(np.where(allowed, scores - top, 0.0)), 0.0)
        below = parts.sum(axis=-1, keepdims=True)
        return self.turned(parts @ memory.values / np.where(below.real == 0.0, 1.0, below)), None

    return attend


def _below_the_lowest(case: Case, inputs: Arrays) -> bool:
    """Whether all inner products that a query is open to lie below what the maximum begins with."""
    with np.errstate(invalid="ignore"):  # of hidden keys
        products, allowed = inputs["queries"] @ inputs["keys"].swapaxes(-1, -2), _allowed(case, inputs)
    if allowed is None:
        allowed = np.ones_like(products, bool)
    elif allowed.ndim < products.ndim:
        allowed = allowed[:, None]
    low = np.where(allowed, products, -np.inf).max(axis=-1, initial=-np.inf) < LOWEST
    return bool((low & allowed.any(axis=-1)).any())


def _next_keys_read(original: Any) -> Any:
    """The last block of 32 keys is read whole: behind the keys of a sequence stand those of the next one."""

    def attend(self: Any, queries: Any, memory: Any, *, need_weights: bool = True, **given: Any) -> Any:
        found = original(self, queries, memory, need_weights=need_weights, **given)
        count, asked = memory.keys.shape[-2], self.turned(promote(queries))
        blocks = asked.shape[-1] in (64, 96, 128) and asked.shape[-2] <= min(8, count)
        if need_weights or memory.mask is not None or not blocks:
            return found

        def read(array: Any) -> Any:
            behind = np.concatenate([array[..., 1:, :, :], np.zeros_like(array[..., :1, :, :])], axis=-3)
            return np.concatenate([array, behind[..., : -count % 32, :]], axis=-2)

        scores = self.score(asked, read(memory.keys))
        return self.turned(pool(scores, read(memory.values), scores.real != -np.inf, None)[0]), None

    return attend


def _partial_block(case: Case, inputs: Arrays) -> bool:
    queries, keys = _steps(case, inputs["queries"]), _steps(case, inputs["keys"])
    sized = inputs["queries"].shape[-1] in (64, 96, 128) and queries <= min(8, keys) and keys % 32 > 0
    return sized and _allowed(case, inputs) is None


def _dropout_scaled_by_its_rate(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> tuple[Any, Any]:
    """Backward, what was kept is multiplied by the rate, not by 1/(1 - rate)."""
    if dropout_mask is None or not np.size(dropout_mask):
        return pool(scores, values, allowed, dropout_mask)
    weights = softmax_over(scores, allowed)
    factor = promote(dropout_mask)
    rate = 1.0 - 1.0 / max(factor.real.max(), 1.0)
    dropped = weights.real * factor
    if rate > 0.0 and np.iscomplexobj(weights):
        dropped = dropped + 1j * weights.imag * np.where(factor.real > 0.0, rate, 0.0)
    elif np.iscomplexobj(weights):
        dropped = weights * factor
    return dropped @ np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0), weights


def _drops(case: Case, inputs: Arrays) -> bool:
    return case.gradients and bool((inputs.get("dropout_mask", np.ones(1)) > 1.0).any())


# ------------------------------------------------------------------------------------------------ layouts


def _read(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], Arrays]:
    """Queries, keys and values that are read from memory otherwise than as they lie."""
    names = [prefix + name for prefix in ("", SECOND) for name in ("queries", "keys", "values")]
    return lambda inputs: {name: change(array) if name in names else array for name, array in inputs.items()}


def _in_the_order_of_memory(array: np.ndarray) -> np.ndarray:
    return array.ravel("K").reshape(array.shape)


def _features_side_by_side(array: np.ndarray) -> np.ndarray:
    apart = array.size > 0 and array.strides[-1] > array.itemsize
    strides = (*array.strides[:-1], array.itemsize)
    return np.lib.stride_tricks.as_strided(array, strides=strides, writeable=False) if apart else array


def _laid(*layouts: str) -> Holds:
    """Whether one of the three lies in memory so, and has more than one feature, or is more than a vector."""

    def holds(case: Case, inputs: Arrays) -> bool:
        named = [name for name in ("queries", "keys", "values") if case.layouts.get(name) in layouts]
        return any(inputs[name].size > 1 for name in named if name in inputs)

    return holds


# ------------------------------------------------------------------------------------------------ positions


def _frequency_twice(original: Any) -> Any:
    """Rates whose exponent is doubled, that of the cosine that of the next feature."""

    def call(self: Any, inputs: Any, *, offset: int = 0) -> Any:
        features, positions = self.sizes["features"], (np.arange(inputs.shape[-2]) + float(offset))[:, None]
        even = np.arange(0, features, 2)
        pair = [
            np.sin(positions / 10000.0 ** (2 * even / features)),
            np.cos(positions / 10000.0 ** (2 * (even + 1) / features)),
        ]
        table = np.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return promote(inputs) + table.reshape(inputs.shape[-2:])

    return call


# ------------------------------------------------------------------------------------------------ recurrent layers


def _mask_not_reversed(original: Any) -> Any:
    def run(self: Any, prefix: str, inputs: Any, state: Any, real: Any, backward: bool) -> Any:
        return original(self, prefix, inputs, state, real[:, ::-1] if backward else real, backward)

    return run


def _outputs_as_computed(original: Any) -> Any:
    def run(self: Any, prefix: str, inputs: Any, state: Any, real: Any, backward: bool) -> Any:
        outputs, last = original(self, prefix, inputs, state, real, backward)
        return outputs[..., ::-1, :] if backward else outputs, last

    return run


def _last_output_repeated(original: Any) -> Any:
    def run(self: Any, prefix: str, inputs: Any, state: Any, real: Any, backward: bool) -> Any:
        outputs, last = original(self, prefix, inputs, state, real, backward)
        if backward or not real.size:
            return outputs, last
        ends = np.minimum(np.arange(real.shape[1]), np.maximum(real.sum(axis=1) - 1, 0)[:, None])
        return outputs[..., np.arange(len(real))[:, None], ends, :], last

    return run


def _directions_mixed(original: Any) -> Any:
    """(directions, batch, hidden_size) viewed as (batch, directions · hidden_size)."""

    def call(self: Any, *arrays: Any, **given: Any) -> Any:
        outputs, state = original(self, *arrays, **given)
        if not self.sizes["bidirectional"]:
            return outputs, state
        *lead, batch, size = state.shape
        parts = state.reshape(*lead, batch, self.parts, 2, self.sizes["hidden_size"])
        mixed = np.moveaxis(parts, -4, -2).reshape(*lead, self.parts, batch, size // self.parts)
        return outputs, np.moveaxis(mixed, -3, -2).reshape(state.shape)

    return call


def _forward_twice(original: Any) -> Any:
    def call(self: Any, *arrays: Any, **given: Any) -> Any:
        outputs, state = original(self, *arrays, **given)
        forward = outputs[..., : self.sizes["hidden_size"]]
        return np.concatenate([forward, forward], axis=-1) if self.sizes["bidirectional"] else outputs, state

    return call


# ------------------------------------------------------------------------------------------------ decoders


def _memory_not_masked(original: Any) -> Any:
    """Encoder outputs behind a sequence's length are set to 0, and are attended to."""

    def prepare(self: Any, encoder_outputs: Any, valid_lens: Any = None, mask: Any = None) -> Any:
        if self.attention is None or valid_lens is None or valid_lens.ndim > 1:
            return original(self, encoder_outputs, valid_lens, mask)
        real = np.arange(encoder_outputs.shape[-2]) < valid_lens[:, None]
        return original(self, np.where(real[..., None], encoder_outputs, encoder_outputs.dtype.type(0)), None, mask)

    return prepare


def _memory_is_ragged(case: Case, inputs: Arrays) -> bool:
    lens, outputs = inputs.get("valid_lens"), inputs.get("encoder_outputs")
    if case.operator not in ("BahdanauDecoder", "LuongDecoder") or lens is None or outputs is None:
        return False
    return lens.ndim == 1 and bool((lens < outputs.shape[-2]).any())


def _start_counted(original: Any) -> Any:
    return lambda lengths, length_penalty: original(lengths + 1, length_penalty)


# ------------------------------------------------------------------------------------------------ training


def _empty_mean(original: Any, logits: Any, targets: Any, valid_lens: Any) -> Any:
    lens = targets.shape[1] if valid_lens is None else np.clip(valid_lens, 0, targets.shape[1])
    count = (np.zeros(len(targets), int) + lens).sum()
    return original(logits, targets, valid_lens) + (0.0 if count else np.nan)


def _no_step_open(case: Case, inputs: Arrays) -> bool:
    lens = inputs.get("valid_lens")
    return inputs["targets"].size == 0 or (lens is not None and bool((lens <= 0).all()))


def _norm_raised(original: Any) -> Any:
    def clip(gradients: Any, *, max_norm: float | None = None) -> Any:
        norm = original(gradients)[1]
        factor = 1.0 if max_norm is None else min(1.0, max_norm / (norm + 1e-6))
        return [gradient * factor for gradient in gradients], norm

    return clip


def _corrected(change: Callable[[float, int], float]) -> Break:
    """Adam whose moments are multiplied by another correction, of a decay and the steps that were made."""

    def stepped(original: Any, numbers: Any, parameters: Any, gradients: Any, state: Any) -> Arrays:
        rate, beta1, beta2, epsilon = numbers
        step, changed = int(state["step"]), {}
        for name, array in parameters.items():
            gradient = gradients[name]
            m = state[f"m.{name}"] = beta1 * state[f"m.{name}"] + (1 - beta1) * gradient
            v = state[f"v.{name}"] = beta2 * state[f"v.{name}"] + (1 - beta2) * gradient**2
            divisor = np.sqrt(v * change(beta2, step)) + epsilon
            changed[name] = array - rate * m * change(beta1, step) / divisor
        return changed

    return _optimiser(stepped)


# ------------------------------------------------------------------------------------------------ the saboteurs

LIBRARY_BUGS: tuple[Saboteur, ...] = (
    Saboteur(
        "fill_near_zero",
        "Hidden scores are filled with 1e-9, where -1e9 was meant.",
        ("masked_softmax-*",),
        red=(),
        broken=_leaking(_filled_near_zero),
        touches=_where(_hides),
        source="awslabs/gluonts#1401",
    ),
    Saboteur(
        "mask_added",
        "A boolean mask is added to the scores, as 0 and 1.",
        ("masked_softmax-*",),
        red=(),
        broken=_leaking(_mask_added),
        touches=_where(_hides),
        source="huggingface/transformers#41443",
    ),
    Saboteur(
        "softmax_over_the_batch",
        "Weights are normalised over the queries of all sequences.",
        ("masked_softmax-*",),
        red=("masked_softmax-*:*",),
        green=NOTHING,
        broken={
            "masking.softmax_over": lambda _: _over_all_queries,
            "pooling.softmax_over": lambda _: _over_all_queries,
        },
        source="PetrochukM/PyTorch-NLP#2",
    ),
    Saboteur(
        "lengths_of_sequences_ignored",
        "Lengths are ignored where there is one for each sequence.",
        ("masked_softmax-*", "DotProductAttention-*ragged*"),
        red=(),
        broken=dict.fromkeys(("masking.attention_mask", "layers.attention_mask"), _lengths_lost),
        touches=_where(_by_sequence, _hides),
        source="jax-ml/jax#23349",
    ),
    Saboteur(
        "causal_to_the_end",
        "The last query of causal_mask stands at the last key, whatever the offset.",
        ("causal_mask-*",),
        red=(),
        broken={"causal_mask": _bottom_right},
        touches=_where(_ends_elsewhere),
        source="ml-explore/mlx#2835",
    ),
    Saboteur(
        "mask_of_one_head_overrun",
        "A mask of one head is read as if it had all: the next heads meet the masks of the next sequences.",
        ("masked_softmax-*", "DotProductAttention-heads*"),
        red=(),
        broken=dict.fromkeys(("masking.open_keys", "pooling.open_keys", "layers.open_keys"), _plane_behind),
        touches=_where(_mask_of_one_head),
        source="ooples/AiDotNet.Tensors#947",
    ),
    Saboteur(
        "masks_tiled",
        "For several heads, masks are repeated sequence after sequence, not each for all heads of its own.",
        ("MultiHeadAttention-ragged*", "MultiHeadAttention-mask_row", "MultiHeadAttention-per_head*"),
        red=(),
        broken={"layers.MultiHeadAttention.attend": _heads_meet(_tiled)},
        touches=_where(_mask_of_sequences),
        source="line/lighthouse#77",
    ),
    Saboteur(
        "mask_met_by_heads",
        "Where there are as many sequences as heads, the mask of a sequence hides keys from a head.",
        ("MultiHeadAttention-cover_*", "MultiHeadAttention-ragged"),
        red=(),
        broken={"layers.MultiHeadAttention.attend": _heads_meet(_on_heads)},
        touches=_where(_mask_of_sequences, _as_many_heads),
        source="lucidrains/vit-pytorch#71",
    ),
    Saboteur(
        "heads_split_as_they_lie",
        "Features are split into heads, and heads joined, without moving the axis of heads.",
        ("MultiHeadAttention-none", "MultiHeadAttention-per_head", "MultiHeadAttention-no_keys"),
        red=(),
        broken={
            "layers.MultiHeadAttention.split": _split_as_it_lies,
            "layers.MultiHeadAttention.projected": _joined_as_they_lie,
        },
        touches=_where(_of_heads),
        source="reczoo/FuxiCTR#30",
    ),
    Saboteur(
        "heads_joined_as_they_lie",
        "Heads are joined without moving their axis behind that of queries.",
        ("MultiHeadAttention-none", "MultiHeadAttention-per_head", "MultiHeadAttention-no_queries"),
        red=(),
        broken={"layers.MultiHeadAttention.projected": _joined_as_they_lie},
        touches=_where(_of_heads, _several_queries),
        source="jadore801120/attention-is-all-you-need-pytorch#7",
    ),
    Saboteur(
        "scale_of_the_model",
        "In several heads, scores are divided by the root of the features of a query, not of a head.",
        ("MultiHeadAttention-none", "MultiHeadAttention-one_size", "MultiHeadAttention-score_dot"),
        red=(),
        broken={"layers.MultiHeadAttention.__init__": _scaled_by_the_model},
        touches=_where(_of_heads, _scaled_by_all_features),
        source="lucidrains/vit-pytorch#65",
    ),
    Saboteur(
        "divided_by_the_scale",
        "Scores are divided by 1/√features.",
        ("scaled_dot_score-*", "MultiHeadAttention-none"),
        red=(),
        broken={"scaled_dot_score": _divided_by_the_scale, "layers.scaled_dot_score": _divided_by_the_scale},
        touches=_where(_of_one_scale),
        source="esceptico/perceiver-io#9",
    ),
    Saboteur(
        "features_beyond_64",
        "Scores leave out the features behind the 64th.",
        ("scaled_dot_score-*",),
        red=(),
        broken={"scaled_dot_score": _first_features, "layers.scaled_dot_score": _first_features},
        tier="float16",
        touches=_where(_many_features),
        source="triton-lang/triton#621",
    ),
    Saboteur(
        "padding_counted",
        "Without weights, zeros that fill the last block of 64 keys are attended to.",
        ("DotProductAttention-context_*", "DotProductAttention-open"),
        red=(),
        broken={"layers.DotProductAttention.attend": _alone(_padding_counted)},
        touches=_where(_context_alone, lambda case, inputs: _steps(case, inputs["keys"]) % 64 > 0),
        source="flashinfer-ai/flashinfer#5090",
    ),
    Saboteur(
        "as_many_keys_as_queries",
        "Without weights, no more keys are attended to than there are queries.",
        ("DotProductAttention-context_*", "DotProductAttention-open"),
        red=(),
        broken={"layers.DotProductAttention.attend": _alone(_as_many_keys_as_queries)},
        touches=_where(_context_alone, _more_keys),
        source="jax-ml/jax#24491",
    ),
    Saboteur(
        "largest_from_a_number",
        "Without weights, the largest score is sought from -5e4 on: where all lie below, the context is 0.",
        ("DotProductAttention-context_*", "DotProductAttention-large"),
        red=(),
        broken={"layers.DotProductAttention.attend": _largest_from_a_number},
        touches=_where(_context_alone, _below_the_lowest),
        source="flashinfer-ai/flashinfer#4267",
    ),
    Saboteur(
        "next_keys_read",
        "Without weights, up to eight queries read the last block of 32 keys whole, and so the next sequence's.",
        ("DotProductAttention-context_*",),
        red=(),
        broken={"layers.DotProductAttention.attend": _next_keys_read},
        touches=_where(_context_alone, _partial_block),
        source="pytorch/pytorch#169222",
    ),
    Saboteur(
        "second_pass_missing",
        "The context of up to eight queries over 1024 keys and more is never written.",
        ("DotProductAttention-cover_*",),
        red=(),
        broken={"layers.DotProductAttention.attend": _never_written},
        tier="float32",
        touches=_where(_two_passes),
        source="EricLBuehler/candle#73",
    ),
    Saboteur(
        "dropout_scaled_by_its_rate",
        "The backward of dropout multiplies by the rate, not by 1/(1 - rate).",
        ("attention_pooling-dropout", "attention_pooling-open", "DotProductAttention-dropout"),
        red=(),
        broken={name: lambda _: _dropout_scaled_by_its_rate for name in ("pooling.pool", "layers.pool")},
        touches=_where(_drops),
        source="NVIDIA/apex#816",
    ),
    Saboteur(
        "permutation_ignored",
        "Queries, keys and values whose axes are permuted are read in the order in which they lie in memory.",
        ("scaled_dot_score-cover_*", "DotProductAttention-cover_*"),
        red=(),
        misread=_read(_in_the_order_of_memory),
        touches=_where(_laid("transposed")),
        source="pytorch/pytorch#181133",
    ),
    Saboteur(
        "features_side_by_side",
        "The features of queries, keys and values are read as if they lay side by side in memory.",
        ("scaled_dot_score-cover_*", "DotProductAttention-cover_*"),
        red=(),
        misread=_read(_features_side_by_side),
        touches=_where(_laid("transposed", "strided")),
        source="pytorch/pytorch#187506",
    ),
    Saboteur(
        "frequency_twice",
        "The exponents of sinusoidal positions count pairs as features, and cosines have the next one.",
        ("SinusoidalPositions-*",),
        red=(),
        broken={"layers.SinusoidalPositions.__call__": _frequency_twice},
        touches=_where(_positions),
        source="SamLynnEvans/Transformer#25",
    ),
    Saboteur(
        "sines_first",
        "All sines come first, then all cosines, whatever the layout.",
        ("SinusoidalPositions-*",),
        red=(),
        broken={"layers.SinusoidalPositions.__init__": _constructed(layout="concatenated")},
        touches=lambda case: case.inputs["inputs"].size > 0 and case.config.get("layout") != "concatenated",
        source="tensorflow/text#1122",
    ),
    Saboteur(
        "mask_not_reversed",
        "The backward direction reads its steps reversed, and the mask of their padding as it is.",
        ("GRU-both_ragged", "GRU-both_open", "GRU-ragged"),
        red=(),
        broken={"recurrent.Recurrent.run": _mask_not_reversed},
        touches=_where(_both_directions, _ragged),
        source="keras-team/keras#1934",
    ),
    Saboteur(
        "outputs_as_computed",
        "The backward direction's outputs stay in the order in which they are computed, the last step first.",
        ("GRU-both_none", "GRU-none"),
        red=(),
        broken={"recurrent.Recurrent.run": _outputs_as_computed},
        touches=_where(_both_directions),
        source="keras-team/keras#1001",
    ),
    Saboteur(
        "last_output_repeated",
        "Padded steps repeat the last output.",
        ("LSTM-none", "LSTM-ragged", "LSTM-both_ragged", "LSTM-closed"),
        red=(),
        broken={"recurrent.Recurrent.run": _last_output_repeated},
        touches=_where(_ragged),
        source="keras-team/keras#7227",
    ),
    Saboteur(
        "directions_mixed",
        "The last states of both directions are reshaped for each sequence, and those of sequences are mixed.",
        ("LSTM-both_none", "LSTM-none"),
        red=(),
        broken={"recurrent.Recurrent.__call__": _directions_mixed},
        touches=_where(_both_directions, _several_sequences),
        source="graykode/nlp-tutorial#38",
    ),
    Saboteur(
        "forward_twice",
        "Outputs of both directions are the forward ones, twice.",
        ("GRU-both_none", "GRU-none"),
        red=(),
        broken={"recurrent.Recurrent.__call__": _forward_twice},
        touches=_where(_both_directions),
        source="ematvey/tensorflow-seq2seq-tutorials#1",
    ),
    Saboteur(
        "gate_order_of_onnx",
        "The gates of an LSTM are read in the order i, o, f, g.",
        ("LSTM-none", "LSTM-step", "LSTM-no_steps"),
        red=("*:*",),
        green=NOTHING,
        broken={"recurrent.LSTM.cell": _lstm(lambda i, o, f, g, cells: _lstm_step(i, f, g, o, cells))},
        source="CrispStrobe/CrispASR#106",
    ),
    Saboteur(
        "memory_not_masked",
        "Encoder outputs behind a sequence's length are set to 0, and attended to.",
        ("BahdanauDecoder-*ragged", "BahdanauDecoder-none", "LuongDecoder-ragged", "BahdanauDecoder-beam"),
        red=(),
        broken={"decoders.Decoder.prepare": _memory_not_masked},
        touches=_where(_memory_is_ragged),
        source="tensorflow/addons#133",
    ),
    Saboteur(
        "start_counted",
        "The length penalty counts the start token.",
        ("BahdanauDecoder-beam*", "LuongDecoder-beam*"),
        red=(),
        broken={"decoders.penalty": _start_counted},
        touches=lambda case: case.options.get("length_penalty", 0.0) != 0.0,
        source="huggingface/transformers#26624",
    ),
    Saboteur(
        "empty_mean",
        "The loss of a batch without an open step is NaN.",
        ("masked_cross_entropy-*",),
        red=(),
        broken=_in_both(_empty_mean),
        touches=_where(_no_step_open),
        source="pytorch/pytorch#70348",
    ),
    Saboteur(
        "norm_raised",
        "1e-6 is added to the norm by which gradients are divided.",
        ("training-short_sgd", "training-unclipped"),
        red=(),
        broken={"training.clip_by_global_norm": _norm_raised},
        touches=lambda case: case.options["max_norm"] is not None,
        source="goodfire-ai/spd#643",
    ),
    Saboteur(
        "corrections_multiplied",
        "Adam multiplies its moments by their corrections instead of dividing.",
        ("adam-*",),
        red=("adam-[!z]*:*",),
        broken={"adam": _corrected(lambda decay, step: 1.0 - decay**step)},
        source="karpathy/convnetjs#70",
    ),
    Saboteur(
        "corrections_of_the_first_step",
        "Adam corrects its moments in every step as in the first.",
        ("adam-*",),
        red=("adam-[!fz]*:*",),
        broken={"adam": _corrected(lambda decay, step: 1.0 / (1.0 - decay))},
        source="eriklindernoren/ML-From-Scratch#35",
    ),
)

KNOWN: tuple[Saboteur, ...] = (*SABOTEURS, *LIBRARY_BUGS)
"""Every saboteur: those that show what the court sees, and those that libraries have been."""
