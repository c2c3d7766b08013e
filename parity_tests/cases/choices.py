"""Cases of local and hard attention, in which the numbers decide on a window or a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attention_core import draws
from attention_core.operators.hard import HARD_ATTENTION
from attention_core.operators.local import LOCAL_ATTENTION
from parity_tests.cases.attention import attention_layer_cases, drawn_noise, score_variants
from parity_tests.cases.masking import (
    ATTENTION,
    EMPTY,
    FULLY_MASKED,
    HIDDEN,
    ROW_LENS,
    SIZED,
    hidden_variants,
    open_inputs,
    some_mask,
)
from parity_tests.format.case import DTYPES, EXACT, SEED, Arrays, Case, Sizes, drawn_tensors, layer_case
from parity_tests.format.families import Family


def with_seed(case: Case, seed: int) -> Case:
    """Return the case with queries of that seed."""
    queries = draws.uniform(f"{case.operator}/queries", case.inputs["queries"].shape, 1.0, seed)
    return replace(case, inputs={**case.inputs, "queries": queries})


def decides(case: Case) -> bool:
    """Whether a choice or a window depends on the drawn numbers of a case; near ties are intended."""
    predicted = case.config.get("mode") == "predictive"
    drawn = not case.name.startswith(("near_tie_", "noise_ends"))
    return (case.operator == "HardAttention" and drawn) or (case.operator == "LocalAttention" and predicted)


def local_cases() -> Iterator[Case]:
    """A window around the query's position, and around a predicted one."""
    monotonic = {**SIZED, "window": 1}
    yield from attention_layer_cases("LocalAttention", monotonic)
    sizes = ATTENTION
    plain = drawn_tensors(LOCAL_ATTENTION.method("call"), sizes)
    full: Arrays = {
        **open_inputs(plain, sizes, dropout=True),
        "offset": np.array([2, 1], np.int32),
        "valid_lens": ROW_LENS,
    }
    case = partial(layer_case, "LocalAttention", wide={"v_p": 8.0})  # which makes the predicted positions differ
    yield case("offset", "Queries at an offset.", full, monotonic)
    at_two = {**full, "offset": np.array(2, np.int32)}
    yield case("offset_of_all", "One offset for all sequences.", at_two, monotonic, EXACT)
    yield case("wide", "A wider window.", full, {**monotonic, "window": 2})
    predictive = {**SIZED, "window": 2, "mode": "predictive"}
    parameters = case("", "", full, predictive).parameters
    yield from attention_layer_cases("LocalAttention", predictive, "predictive_", parameters)
    without = {key: array for key, array in full.items() if key != "offset"}
    yield case("predictive_none", "Neither lengths nor mask.", plain, predictive, EXACT)
    yield case("predictive_hidden_size", "Another hidden size.", without, {**predictive, "hidden_size": 8})
    yield case("predictive_wide", "A wider window, and Gaussian.", without, {**predictive, "window": 3})
    for score, config, key_size in score_variants(9, "general"):
        inputs = {**full, "keys": draws.uniform(f"local/{score}", (*plain["keys"].shape[:2], key_size), 1.0, SEED)}
        options = {**monotonic, "key_size": key_size, **config}
        yield case(f"score_{score}", f"The score {score} inside.", inputs, options, EXACT)


def hard_cases() -> Iterator[Case]:
    """One key for each query."""
    sizes = ATTENTION
    plain = drawn_tensors(HARD_ATTENTION.method("call"), sizes)
    full = open_inputs(plain, sizes)
    noise = drawn_noise((sizes["batch"], sizes["queries"], sizes["keys"]))
    wide = dict.fromkeys(("scored.w_v", "scored.v", "scored.W"), 3.0)  # which keep the best two scores apart
    case = partial(layer_case, "HardAttention")
    parameters = case("", "", full, HIDDEN, wide=wide).parameters
    yield from attention_layer_cases("HardAttention", HIDDEN, parameters=parameters)
    drawn_key = case("noise", "A key sampled with a noise tensor.", {**full, "noise": noise}, HIDDEN)
    yield drawn_key
    masked = {**full, "noise": noise, **FULLY_MASKED}
    yield replace(drawn_key, name="noise_fully_masked", shows="The same under lengths and a mask.", inputs=masked)
    for score, config, key_size in score_variants(9, "additive"):
        keys = draws.uniform(f"hard/{score}", (*plain["keys"].shape[:2], key_size), 1.0, SEED)
        options = {"query_size": 9, "key_size": key_size, **config}
        yield case(f"score_{score}", f"The score {score} inside.", {**full, "keys": keys}, options, EXACT, wide)
    yield from log_prob_cases(partial(case, config=HIDDEN, method="log_prob"))


def log_prob_cases(case: Callable[..., Case]) -> Iterator[Case]:
    """The log-probability of a key for each query."""

    def draw_inputs(sizes: Sizes, heads: bool = False) -> Arrays:
        plain = drawn_tensors(HARD_ATTENTION.method("call"), sizes, heads)
        most = max(sizes["keys"], 1)
        chosen = np.eye(most)[draws.integers("chosen", plain["queries"].shape[:-1], most, SEED)]
        return {**plain, "weights": chosen[..., : sizes["keys"]]}

    sizes = ATTENTION
    full = open_inputs(draw_inputs(sizes), sizes)
    masked = {**full, **FULLY_MASKED}
    yield case("log_prob", "The log-probability of a key.", full, dtypes=DTYPES)
    yield case("log_prob_none", "The same with neither lengths nor mask.", draw_inputs(sizes), dtypes=EXACT)
    shows = "Of hidden keys, too, and of queries that may attend to nothing: 0."
    yield case("log_prob_fully_masked", shows, masked, dtypes=DTYPES)
    for label, shows, inputs in hidden_variants(full):
        yield case(f"log_prob_{label}", shows, inputs)
    heads = {**draw_inputs(sizes, True), "valid_lens": ROW_LENS, "mask": some_mask(sizes, True)}
    yield case("log_prob_heads", "Heads, each with its own mask.", heads, dtypes=EXACT)
    swapped = {
        key: array.swapaxes(0, 1).copy() if key in ("queries", "keys", "values") else array
        for key, array in masked.items()
    }
    major = {**HIDDEN, "time_major": True}
    yield case("log_prob_time_major", "Queries as (steps, batch, features).", swapped, config=major, dtypes=EXACT)
    shows = "Probabilities down to the smallest numbers and below, where their logarithms are ordinary numbers."
    yield case("log_prob_gap", shows, full, wide={"scored.w_v": 2000.0}, gradients=False)
    for label, shows, axis, size in EMPTY:
        small = {**sizes, axis: size}
        yield case(f"log_prob_{label}", shows, open_inputs(draw_inputs(small), small), dtypes=EXACT)


FAMILIES = (Family((LOCAL_ATTENTION.name,), local_cases), Family((HARD_ATTENTION.name,), hard_cases))
