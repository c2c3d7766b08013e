"""Cases of attention with several heads, of a layer without some of them, and of their importance and rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators.multi_head import MULTI_HEAD_ATTENTION
from parity_tests.cases.attention import attention_layer_cases, score_variants
from parity_tests.cases.masking import ATTENTION, ROW_LENS, open_inputs, some_mask
from parity_tests.format.case import DTYPES, EXACT, FULL, SEED, Arrays, Case, drawn_tensors, layer_case
from parity_tests.format.families import Family

HEADS = {"query_size": 9, "num_heads": 3, "key_size": 10, "value_size": 11, "hidden_size": 12}


def heads_cases() -> Iterator[Case]:
    """Several heads, each with its own projections."""
    yield from attention_layer_cases("MultiHeadAttention", HEADS)
    sizes = ATTENTION
    shape = (sizes["batch"], sizes["heads"])
    full: Arrays = {
        **open_inputs(drawn_tensors(MULTI_HEAD_ATTENTION.method("call"), sizes), sizes),
        "valid_lens": ROW_LENS,
        "head_mask": np.ones(shape),
        "dropout_mask": np.ones((*shape, sizes["queries"], sizes["keys"])),
    }
    case, per_head = partial(layer_case, "MultiHeadAttention"), {"per_head": True}
    yield case("per_head", "The weights of every head.", full, HEADS, options=per_head)
    masks = {**full, "mask": some_mask(sizes, heads=True)}
    yield case("per_head_mask", "A mask for each head, and its weights.", masks, HEADS, options=per_head)
    factors = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]])
    yield case("head_mask", "Heads that are off for a sequence.", {**full, "head_mask": factors}, HEADS)
    yield case("head_mask_row", "Heads that are off for all.", {**full, "head_mask": factors[0]}, HEADS, EXACT)
    yield case("no_bias", "Projections without biases.", full, {**HEADS, "bias": False})
    groups = {**HEADS, "num_heads": 6, "num_key_heads": 2}
    every = {**full, "head_mask": np.ones((sizes["batch"], 6))}
    every.pop("dropout_mask")
    every["mask"] = some_mask({**sizes, "heads": 6}, heads=True)
    yield case("groups", "Three heads of queries for each of keys.", every, groups, options=per_head)
    additive = {**groups, "score": "additive"}
    yield case("groups_additive", "Heads that share keys, and another score.", every, additive, EXACT)
    same = {"query_size": 9, "num_heads": 3}
    keys, values = (draws.uniform(f"heads/{name}", (2, 7, 9), 1.0, SEED) for name in ("keys", "values"))
    yield case("one_size", "All of one size, the default.", {**full, "keys": keys, "values": values}, same)
    yield from rotary_cases(full)
    for score, config, _ in score_variants(4, "scaled_dot"):
        options = {**HEADS, **{name: value for name, value in config.items() if name != "hidden_size"}}
        yield case(f"score_{score}", f"The score {score} in every head.", full, options, EXACT)


def rotary_cases(full: Arrays) -> Iterator[Case]:
    """Queries and keys that are rotated by their positions."""
    case, rotary = partial(layer_case, "MultiHeadAttention"), {**HEADS, "rotary_layout": "interleaved"}
    yield case("rotary", "Rotated by their positions.", full, rotary, DTYPES)
    halves = {**HEADS, "num_heads": 6, "num_key_heads": 2, "rotary_layout": "concatenated", "rotary_base": 50.0}
    offset, every = np.array([9, -2], np.int32), {**full, "head_mask": np.ones((2, 6))}
    every.pop("dropout_mask")
    shows = "Halves rotated, another base, heads that share keys, and each sequence's queries at an offset."
    yield case("rotary_halves", shows, {**every, "offset": offset}, {**halves, "hidden_size": 24}, FULL)
    shows = "Prepare, then attend with queries at an offset."
    yield case("prepared_rotary", shows, {**full, "offset": offset}, rotary, EXACT, method="attend")
    at_three = {**full, "offset": np.array(3, np.int32)}
    yield case("rotary_offset", "One offset for all sequences.", at_three, rotary, EXACT)
    steps: Arrays = {f"steps.{name}": full[name][:, 4:].copy() for name in ("keys", "values")}
    masked = {name: array for name, array in full.items() if name not in ("mask", "dropout_mask")}
    first: Arrays = {**masked, **{name: full[name][:, :4].copy() for name in ("keys", "values")}, **steps}
    first["valid_lens"] = np.array([4, 2], np.int32)
    shows = "Three steps behind four keys, and queries at an offset."
    yield case("extended_rotary", shows, {**first, "offset": offset}, rotary, EXACT, method="extend")
    places = np.array([3, 1], np.int32)
    room = {**masked, **steps, "valid_lens": places, "steps.position": places, "offset": places}
    shows = "Steps in the room of a memory, at another position in each sequence."
    yield case("extended_rotary_at", shows, room, halves | {"num_heads": 3, "num_key_heads": 1}, EXACT, method="extend")


def pruned_cases() -> Iterator[Case]:
    """A layer without some of its heads, for which a smaller one is made."""
    case, sizes = partial(layer_case, "MultiHeadAttention"), ATTENTION
    given: Arrays = {
        **open_inputs(drawn_tensors(MULTI_HEAD_ATTENTION.method("call"), sizes), sizes),
        "valid_lens": ROW_LENS,
    }
    six = {**HEADS, "num_heads": 6}

    def without_heads(name: str, shows: str, config: Mapping[str, Any], *heads: int, **options: Any) -> Case:
        return case(name, shows, given, config, method="pruned", options={"heads": [*heads], **options})

    yield without_heads("pruned", "Without a head.", HEADS, 1)
    yield without_heads("pruned_several", "Without two heads, in no order.", six, 5, 0, per_head=True)
    pairs, threes = {**six, "num_key_heads": 3}, {**six, "num_key_heads": 2}
    yield without_heads("pruned_group", "Without the two heads that share a key head.", pairs, 2, 3, per_head=True)
    yield without_heads("pruned_groups", "Without one head of each three that share keys.", threes, 1, 3, per_head=True)
    yield without_heads("pruned_unequal", "Groups of one head and of two remain.", threes, 0, 1, 4, per_head=True)
    yield without_heads("pruned_no_bias", "Projections without biases.", {**HEADS, "bias": False}, 0)
    yield without_heads("pruned_rotary", "Rotated heads.", {**pairs, "rotary_layout": "concatenated"}, 1)
    yield without_heads("pruned_additive", "Another score, with parameters.", {**pairs, "score": "additive"}, 2, 3)


IMPORTANCES = ("ablation_importance", "taylor_importance")


def importance_cases() -> Iterator[Case]:
    """The importance of heads, for squared errors of outputs that are sums over the heads."""
    batch, heads, outputs = 4, 3, 5
    arrays = {
        "head_mask": np.ones((batch, heads)),
        "losses.heads": draws.uniform("losses.heads", (heads, outputs), 1.0, SEED),
        "losses.targets": draws.uniform("losses.targets", (batch, outputs), 1.0, SEED),
        "losses.weights": 0.5 * (draws.uniform("losses.weights", (outputs,), 1.0, SEED) + 1.5),
    }
    cut = {**arrays, "head_mask": np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.5], [1.0, 1.0, 0.0]])}
    for operator in IMPORTANCES:
        yield Case(operator, "plain", "All heads are on.", arrays, dtypes=DTYPES, gradients=False)
        yield Case(operator, "cut", "Some heads are off already.", cut, gradients=False)


def rollout_cases() -> Iterator[Case]:
    """Weights of several layers, multiplied."""
    name, shape = "attention_rollout", (4, 2, 3, 5, 5)
    weights = np.exp(draws.uniform("rollout", shape, 3.0, SEED))
    weights /= weights.sum(axis=-1, keepdims=True)
    yield Case(name, "plain", "Four layers of three heads.", {"weights": weights}, dtypes=DTYPES)
    yield Case(name, "residual", "Another share of the residual connection.", {"weights": weights}, {"residual": 0.2})
    yield Case(name, "no_residual", "The layers alone.", {"weights": weights}, {"residual": 0.0})
    yield Case(name, "one_layer", "The weights of a single layer.", {"weights": weights[:1]}, dtypes=EXACT)
    masked = np.where(np.arange(5) <= np.arange(5)[:, None], weights, 0.0)
    masked[:, 1, :, 2] = 0.0
    yield Case(name, "zeros", "Causal weights, and a step that attends to nothing.", {"weights": masked}, dtypes=EXACT)
    for axis, empty in (("batch", weights[:, :0]), ("steps", weights[..., :0, :0])):
        yield Case(name, f"no_{axis}", f"An empty axis: {axis}.", {"weights": empty}, dtypes=EXACT)


FAMILIES = (
    Family((MULTI_HEAD_ATTENTION.name,), heads_cases),
    Family((MULTI_HEAD_ATTENTION.name,), pruned_cases),
    Family(IMPORTANCES, importance_cases),
    Family(("attention_rollout",), rollout_cases),
)
