"""Regressions from fuzzing and from other devices: each line showed a difference once, and is a case since."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from parity_tests.format.case import Case
from parity_tests.format.drawn import Drawn
from parity_tests.format.families import Family

FOUND: tuple[Drawn, ...] = (
    # The reference, PyTorch, JAX and MXNet divided by the number of key heads where there are none.
    Drawn("DotProductAttention", method="attend", sizes={"heads": 0, "key_heads": 0}, given=("valid_lens",)),
    # JAX's beam search raised where there are no sequences.
    Drawn(
        "BahdanauDecoder",
        method="beam",
        sizes={"batch": 0, "vocab_size": 2},
        options={"bos": 0, "eos": 0, "width": 2},
        given=("state",),
    ),
    # MXNet's log_softmax was off by 30 eps.
    Drawn(
        "FixedContextDecoder",
        method="beam",
        dtype="float32",
        sizes={"vocab_size": 4},
        options={"initial": "learned", "bos": 0, "eos": 0, "width": 3},
    ),
    # The logarithm of a probability near 1 was allowed an error in its own eps, but has one of 1: 2e-16 of 0.028.
    Drawn(
        "TransformerTranslator",
        method="beam",
        seed=35066,
        sizes={"features": 4, "hidden_size": 2, "num_layers": 4, "target_vocab_size": 2},
        options={"activation": "gelu", "gated": True, "last_norm": True, "bos": 1, "eos": 0, "width": 2},
        scales={"parameters": 2.0},
        forward=True,
    ),
    # MXNet's backward direction took 1 from the least int64.
    Drawn(
        "GRUEncoder",
        method="call",
        options={"bidirectional": True},
        given=("valid_lens",),
        types={"valid_lens": "int64"},
        wild=True,
    ),
    # In float32, the square of a short vector was 0 and that of a long one inf, and the cosines were 0.
    Drawn("cosine_score", dtype="float32", sizes={"features": 2}, scales={"keys": 1e-30}),
    Drawn("cosine_score", dtype="float32", sizes={"features": 2}, scales={"queries": 1e30}, forward=True),
    # On a GPU, PyTorch and JAX multiply matrices of these sizes in TensorFloat-32 if allowed to, and smaller ones not.
    Drawn("dot_score", dtype="float32", sizes={"batch": 2, "queries": 32, "keys": 32, "features": 64}),
    Drawn(
        "DotProductAttention",
        method="call",
        dtype="float32",
        sizes={"batch": 2, "queries": 32, "keys": 32, "features": 64, "value_features": 32},
    ),
    Drawn(
        "MultiHeadAttention",
        method="call",
        dtype="float32",
        sizes={"batch": 2, "queries": 32, "keys": 32, "heads": 2, "head_size": 32, "query_size": 32},
    ),
    Drawn("GRU", method="call", dtype="float32", sizes={"batch": 32, "steps": 2, "input_size": 32, "hidden_size": 32}),
    # TensorFlow took a length of 2**63 - 1 for a negative one: tf.sequence_mask casts it to int32.
    Drawn(
        "TransformerEncoder",
        method="call",
        seed=1,
        sizes={"features": 4},
        given=("valid_lens",),
        types={"valid_lens": "int64"},
        wild=True,
    ),
    # The reference wrote the sigmoid as 1 + tanh, of which 2e-12 is rounding where a gate is closed.
    Drawn("LSTM", method="call", seed=1, sizes={"input_size": 2}, scales={"inputs": 16.0}, forward=True),
    # A gradient of 1 - tanh² was allowed its own rounding, and not that of tanh near 1.
    Drawn("ConcatAttention", method="extend", scales={"queries": 16.0}),
)


def found_cases(operator: str) -> Iterator[Case]:
    """The lines of an operator, as cases like any other."""
    for drawn in FOUND:
        if drawn.operator == operator:
            name = f"found_{drawn.name.removeprefix('drawn_')}"
            yield Case(**{**drawn.as_case(), "name": name, "shows": "Found by fuzzing, or on a GPU."})


FAMILIES = tuple(Family((name,), partial(found_cases, name)) for name in dict.fromkeys(one.operator for one in FOUND))
