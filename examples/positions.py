"""How positions fare in a stack of self-attention: `python examples/positions.py torch`.

A sentence is read twice, the second time with two words swapped, by stacks of drawn parameters. Without positions, the
outputs of the other words stay the same: self-attention does not see the order. Positions that are added to the words
enter once, at the bottom, and every layer mixes them with the words; with rotated heads and biases they enter again in
every layer. Prints how much the other words' outputs change, as a share of their size, by the depth of the stack.
"""

from __future__ import annotations

import importlib
import sys

import numpy as np

import backends
from attention_core import draws

WORDS, STEPS, FEATURES, HEADS, HIDDEN = 50, 12, 32, 4, 64
DEPTHS = (1, 2, 4, 8)
KINDS: dict[str, dict[str, int]] = {
    "none": {},
    "sinusoidal": {},
    "learned": {"num_positions": STEPS},
    "rotary": {},
    "relative": {"num_buckets": 8},
    "alibi": {},
}


def main(name: str) -> None:
    """Print a row for each kind of positions, and a column for each depth."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    tokens = draws.integers("tokens", (1, STEPS), WORDS)
    first, second = 3, 8
    swapped = tokens.copy()
    swapped[:, [first, second]] = tokens[:, [second, first]]
    others = [step for step in range(STEPS) if step not in (first, second)]
    print(f"{name}: {'layers':<12}", *(f"{depth:>7}" for depth in DEPTHS))
    for kind, options in KINDS.items():
        changes = []
        for depth in DEPTHS:
            config = {"vocab_size": WORDS, "features": FEATURES, "num_heads": HEADS, "hidden_size": HIDDEN}
            config |= {"num_layers": depth, "norm": "pre", "positions": kind, **options}
            encoder = runtime.build(attention.TransformerEncoder, config, "float64")
            arrays = {
                key: draws.uniform(key, array.shape, 3.0 * array.shape[-1] ** -0.5)
                if array.ndim > 1
                else np.full(array.shape, float(key.endswith(".g")))  # gains are 1, biases 0
                for key, array in attention.get_parameters(encoder).items()
            }
            attention.set_parameters(encoder, arrays)
            once, again = (runtime.to_numpy(encoder(runtime.from_numpy(read))[0]) for read in (tokens, swapped))
            difference = np.linalg.norm((once - again)[:, others]) / np.linalg.norm(once[:, others])
            changes.append(difference)
        print(f"{name}: {kind:<12}", *(f"{100.0 * change:>6.2f}%" for change in changes))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "torch")
