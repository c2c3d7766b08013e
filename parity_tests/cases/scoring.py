"""Cases of scores and of pooling by them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators import OF_FILES
from attention_core.operators.pooling import ATTENTION_POOLING
from attention_core.operators.scoring import COSINE_SCORE, GAUSSIAN_SCORE, LOCATION_SCORE
from attention_core.specification import Operator
from parity_tests.cases.masking import ATTENTION, infinite_scores, normalised_cases, open_inputs
from parity_tests.format.case import DTYPES, EXACT, FULL, SEED, Arrays, Case, drawn_tensors
from parity_tests.format.families import Family


def score_cases(operator: Operator) -> Iterator[Case]:
    """Cases of a score function."""
    sizes = ATTENTION

    def case(label: str, shows: str, inputs: Arrays, dtypes: tuple[str, ...] = FULL, **options: Any) -> Case:
        return Case(operator.name, label, shows, inputs, options, dtypes=dtypes)

    plain = drawn_tensors(operator, sizes)
    yield case("plain", "Queries and keys.", plain, DTYPES)
    yield case("heads", "Queries and keys with heads.", drawn_tensors(operator, sizes, heads=True))
    large = {key: array * (1.0 if key == "w_v" else 300.0) for key, array in plain.items()}
    yield case("large", "Features in the hundreds.", large)
    if "scale" in {option.name for option in operator.options}:
        yield case("scale", "Another scale.", plain, scale=0.375)
    if "softcap" in {option.name for option in operator.options}:
        yield case("softcap", "Bounded scores.", plain, softcap=0.25)
        yield case("softcap_large", "Bounded scores of features in the hundreds.", large, softcap=5e4)
    if operator is GAUSSIAN_SCORE:
        yield case("width", "Another width.", {**plain, "w": np.array(0.625)})
    if operator is COSINE_SCORE:
        zeros = {key: array.copy() for key, array in plain.items()}
        zeros["queries"][0, 1], zeros["keys"][1, 2] = 0.0, 0.0
        yield case("zero", "A query and a key of zeros have no direction: score 0, gradient 0.", zeros)
        for label, size in (("tiny", 1e-30), ("huge", 1e30)):
            shows = f"Entries near {size:g}, whose squares float32 does not hold."
            yield case(label, shows, {key: size * array for key, array in plain.items()})
    features = operator.tensors[0].axes[-1]
    for label, shows, axis, size in (
        ("one_key", "A single key.", "keys", 1),
        ("no_keys", "There are no keys.", "keys", 0),
        ("no_queries", "There are no queries.", "queries", 0),
        ("no_batch", "There are no sequences.", "batch", 0),
        ("no_features", "There are no features: every score is 0.", features, 0),
    ):
        yield case(label, shows, drawn_tensors(operator, {**sizes, axis: size}), EXACT)


def location_cases() -> Iterator[Case]:
    """Scores from the query alone."""
    operator, sizes = LOCATION_SCORE, ATTENTION
    plain = drawn_tensors(operator, sizes)

    def case(
        label: str, shows: str, inputs: Arrays = plain, dtypes: tuple[str, ...] = EXACT, num_keys: int = sizes["keys"]
    ) -> Case:
        return Case(operator.name, label, shows, inputs, {"num_keys": num_keys}, dtypes=dtypes)

    yield case("plain", "Fewer keys than positions.", dtypes=DTYPES)
    yield case("heads", "Projected queries with heads.", drawn_tensors(operator, sizes, heads=True), FULL)
    yield case("all", "A key for every position.", num_keys=8)
    yield case("no_keys", "There are no keys.", num_keys=0)
    yield case("no_queries", "There are no queries.", drawn_tensors(operator, {**sizes, "queries": 0}))
    yield case("no_batch", "There are no sequences.", drawn_tensors(operator, {**sizes, "batch": 0}))


def pooling_cases() -> Iterator[Case]:
    """From scores and values to context and weights."""
    operator, sizes = ATTENTION_POOLING, ATTENTION
    yield from normalised_cases(operator, dropout=True)
    full = open_inputs(drawn_tensors(operator, sizes), sizes, dropout=True)
    values = full["values"].copy()
    values[1, 2] = np.nan
    shows = "Scores of -inf count as hidden; NaN in a value that is hidden from all queries by them."
    infinite = {**full, "scores": infinite_scores(full["scores"]), "values": values}
    yield Case(operator.name, "infinite", shows, infinite)
    dropped = draws.dropout_mask(operator.name, full["scores"].shape, 0.3, SEED)
    shows = "Dropout acts on the weights; the returned ones are those before dropout."
    yield Case(operator.name, "dropout", shows, {**full, "dropout_mask": dropped})


FAMILIES = (
    *(
        Family((score.name,), location_cases if score is LOCATION_SCORE else partial(score_cases, score))
        for score in OF_FILES["scoring"]
        if isinstance(score, Operator)
    ),
    Family((ATTENTION_POOLING.name,), pooling_cases),
)
