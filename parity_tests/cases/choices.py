"""Cases of local and hard attention, in which the numbers decide on a window or a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators.hard import HARD_ATTENTION
from attention_core.operators.local import LOCAL_ATTENTION
from parity_tests.cases.attention import attention_layer_cases, drawn_noise, score_variants
from parity_tests.cases.case import EXACT, FULL, SEED, Arrays, Case, drawn_tensors, layer_case
from parity_tests.cases.masking import ATTENTION, FULLY_MASKED, HIDDEN, ROW_LENS, SIZED, open_inputs


def seeded(case: Case, seed: int) -> Case:
    """The case with queries of that seed."""
    queries = draws.uniform(f"{case.operator}/queries", case.inputs["queries"].shape, 1.0, seed)
    return replace(case, inputs={**case.inputs, "queries": queries})


def decides(case: Case) -> bool:
    """Whether a choice or a window depends on the numbers of a case."""
    predicted = case.config.get("mode") == "predictive"
    return case.operator == "HardAttention" or (case.operator == "LocalAttention" and predicted)


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

    def case(label: str, shows: str, config: Mapping[str, Any], inputs: Arrays = full, **changes: Any) -> Case:
        # A wide v_p makes the predicted positions differ.
        return layer_case("LocalAttention", label, shows, inputs, config, wide={"v_p": 8.0}, **changes)

    yield case("offset", "Queries at an offset.", monotonic)
    yield case("wide", "A wider window.", {**monotonic, "window": 2})
    predictive = {**SIZED, "window": 2, "mode": "predictive"}
    yield from attention_layer_cases("LocalAttention", predictive, "predictive_", case("", "", predictive).parameters)
    without = {key: array for key, array in full.items() if key != "offset"}
    yield case("predictive_none", "Neither lengths nor mask.", predictive, plain, dtypes=EXACT)
    yield case("predictive_hidden_size", "Another hidden size.", {**predictive, "hidden_size": 8}, without)
    yield case("predictive_wide", "A wider window, and Gaussian.", {**predictive, "window": 3}, without)
    for score, config, key_size in score_variants(9, "general"):
        inputs = {**full, "keys": draws.uniform(f"local/{score}", (*plain["keys"].shape[:2], key_size), 1.0, SEED)}
        options = {**monotonic, "key_size": key_size, **config}
        yield case(f"score_{score}", f"The score {score} inside.", options, inputs, dtypes=EXACT)


def hard_cases() -> Iterator[Case]:
    """One key for each query."""
    sizes = ATTENTION
    plain = drawn_tensors(HARD_ATTENTION.method("call"), sizes)
    full = open_inputs(plain, sizes)
    noise = drawn_noise((sizes["batch"], sizes["queries"], sizes["keys"]))

    def case(
        label: str,
        shows: str,
        config: Mapping[str, Any],
        inputs: Arrays,
        dtypes: tuple[str, ...] = FULL,
        factor: float = 3.0,
    ) -> Case:
        # Wide scores keep the best two apart.
        wide = dict.fromkeys(("scored.w_v", "scored.v", "scored.W"), factor)
        return layer_case("HardAttention", label, shows, inputs, config, dtypes, wide)

    yield from attention_layer_cases("HardAttention", HIDDEN, parameters=case("", "", HIDDEN, full).parameters)
    drawn_key = case("noise", "A key sampled with a noise tensor.", HIDDEN, {**full, "noise": noise}, factor=1.0)
    yield drawn_key
    masked = {**full, "noise": noise, **FULLY_MASKED}
    yield replace(drawn_key, name="noise_closed", shows="The same under lengths and a mask.", inputs=masked)
    for score, config, key_size in score_variants(9, "additive"):
        keys = draws.uniform(f"hard/{score}", (*plain["keys"].shape[:2], key_size), 1.0, SEED)
        options = {"query_size": 9, "key_size": key_size, **config}
        yield case(f"score_{score}", f"The score {score} inside.", options, {**full, "keys": keys}, EXACT)


def cases() -> Iterator[Case]:
    """Every case of local and hard attention."""
    yield from local_cases()
    yield from hard_cases()
