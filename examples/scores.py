"""What a score is, and is not: `python examples/scores.py torch weights.png`.

With equal keys every score gives uniform weights, and additive and scaled dot-product attention agree; with random keys
they do not. A matrix lets queries and keys of different sizes be compared. The sum of query and key is no score: the
softmax over the keys cancels the query. Draws a matrix of random weights if a file is named.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

import backends
from attention_core import draws

BATCH, QUERIES, KEYS, SIZE, HIDDEN, VALUE_SIZE = 2, 3, 10, 20, 8, 4
KEY_SIZE = 2


def main(name: str, file: str | None) -> None:
    """Compare the weights of scores, in one framework."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    queries = draws.uniform("queries", (BATCH, QUERIES, SIZE), 2.0)
    values = draws.uniform("values", (BATCH, KEYS, VALUE_SIZE), 2.0)

    def weights_of(layer: Any, keys: np.ndarray) -> np.ndarray:
        return runtime.to_numpy(layer(*map(runtime.from_numpy, (queries, keys, values)))[1])

    def build_layer(layer: Any, **config: Any) -> Any:
        """The layer with drawn parameters."""
        made = runtime.build(layer, config, "float64")
        arrays = attention.get_parameters(made).items()
        attention.set_parameters(made, {key: draws.uniform(key, array.shape, 0.5) for key, array in arrays})
        return made

    additive = build_layer(attention.AdditiveAttention, query_size=SIZE, key_size=SIZE, hidden_size=HIDDEN)
    scaled_dot = build_layer(attention.DotProductAttention)
    for title, keys in (
        ("equal keys", np.ones((BATCH, KEYS, SIZE))),
        ("random keys", draws.uniform("keys", (BATCH, KEYS, SIZE), 2.0)),
    ):
        difference = np.abs(weights_of(additive, keys) - weights_of(scaled_dot, keys))
        moved = 0.5 * difference.sum(axis=-1).mean()
        print(f"{name}: {title}: additive and scaled dot-product weights differ by up to {difference.max():.3f};")
        print(f"{name}:     {100.0 * moved:.0f} % of a query's weight is on other keys")

    general = build_layer(attention.GeneralAttention, query_size=SIZE, key_size=KEY_SIZE)
    narrow = draws.uniform("narrow", (BATCH, KEYS, KEY_SIZE), 2.0)
    matrix = attention.get_parameters(general)["W"]
    dot = build_layer(attention.DotProductAttention, scale=1.0)
    difference = np.abs(weights_of(general, narrow) - weights_of(dot, narrow @ matrix.T)).max()
    print(f"{name}: a query of {SIZE} features and keys of {KEY_SIZE}: W has the shape {matrix.shape};")
    print(f"{name}:     the weights are those of inner products with W k, within {difference:.0e}")

    sums = (queries.sum(axis=-1)[:, :, None] + keys.sum(axis=-1)[:, None]) / SIZE**0.5
    for title, weights in (
        ("the sum of query and key", runtime.to_numpy(attention.masked_softmax(runtime.from_numpy(sums)))),
        ("the additive score", weights_of(additive, keys)),
    ):
        print(f"{name}: {title}: the weights of two queries differ by up to {np.ptp(weights, axis=1).max():.2g}")

    if file is not None:
        from parity_tests.plots import heatmap

        scores = draws.uniform("scores", (1, KEYS, KEYS), 2.0)
        weights = runtime.to_numpy(attention.masked_softmax(runtime.from_numpy(scores)))
        numbers = [str(number) for number in range(KEYS)]
        heatmap(weights[0], numbers, numbers).savefig(file)
        print(f"drawn in {file}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "torch", sys.argv[2] if len(sys.argv) > 2 else None)
