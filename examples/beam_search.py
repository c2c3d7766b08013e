"""The best hypotheses of a search with and without a length penalty: `python examples/beam_search.py torch`.

A sum of log probabilities falls with every token, so that a search prefers short hypotheses. `length_penalty` α divides
it by ((5 + n)/6)^α, n being the number of tokens up to the end, and `num_best` returns more hypotheses than the first.
Prints those of a decoder with drawn parameters, with their scores.
"""

from __future__ import annotations

import importlib
import sys

import backends
from attention_core import draws

CONFIG = {"vocab_size": 9, "embed_size": 6, "hidden_size": 8}
SEARCH = {"bos": 1, "eos": 2, "max_steps": 8, "width": 4, "num_best": 3}
PENALTIES = (0.0, 1.0)


def main(name: str) -> None:
    """Search once for each penalty, and print a line for each hypothesis."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    decoder = runtime.build(attention.BahdanauDecoder, CONFIG, "float64")
    drawn = attention.get_parameters(decoder).items()
    attention.set_parameters(decoder, {key: draws.uniform(f"words/{key}", array.shape, 2.0) for key, array in drawn})
    encoded = runtime.from_numpy(draws.uniform("encoder outputs", (1, 5, CONFIG["hidden_size"])))
    state = runtime.from_numpy(draws.uniform("encoder state", (1, 1, CONFIG["hidden_size"])))
    for penalty in PENALTIES:
        found = decoder.beam(encoded, state, **SEARCH, length_penalty=penalty)
        tokens, lengths, scores = (runtime.to_numpy(array)[0] for array in found[:3])
        for hypothesis, length, score in zip(tokens, lengths, scores, strict=True):
            words = " ".join(map(str, hypothesis[:length]))
            print(f"{name}: length_penalty {penalty}: score {score:.3f}: {words}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "torch")
