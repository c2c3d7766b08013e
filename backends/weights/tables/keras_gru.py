"""Keras' GRU with reset_after=True, its default: gates z, r, n, kernels (inputs, outputs), one bias with two rows.

The second spelling is that of a .weights.h5 file, which numbers a layer's variables.
https://keras.io/api/layers/recurrent_layers/gru/
"""

from __future__ import annotations

from typing import Any

from backends.weights.table import OF_EVERY_LAYER, READS_PADDING, REPEATS, Row, Settings, Source, gates

DIRECTIONS = (("", "forward_*/", "backward_*/"), ("", "forward_layer/", "backward_layer/"), ("",))


def names_of(layer: str, variable: str, number: int) -> str:
    """The name of a variable in the three spellings."""
    return f"{{direction}}{layer}_cell/{variable} | {{direction}}cell/vars/{number} | {variable}"


def settings(*kinds: str, **more: Any) -> Settings:
    """The settings of a recurrent layer, alone or in a Bidirectional, whose outputs are side by side here."""
    needed = {"activation": "tanh", "recurrent_activation": "sigmoid", "go_backwards": False, "merge_mode": "concat"}
    sizes = ("units", "use_bias", "return_*", "unit_forget_bias", "weights")
    ways = ("time_major", "stateful", "unroll", "zero_output_for_mask", "implementation", "backward_layer.return_*")
    return Settings(kinds, {**needed, **more}, free=(*OF_EVERY_LAYER, *sizes, *ways))


SOURCE = Source(
    name="keras.GRU",
    layer="GRU",
    warnings=(
        READS_PADDING,
        REPEATS,
    ),
    directions=DIRECTIONS,
    settings=settings("GRU", "GRUCell", reset_after=True),
    rows=(
        Row(names_of("gru", "kernel", 0), "i (3 h) -> 3 h i", gates("W", "zrn")),
        Row(names_of("gru", "recurrent_kernel", 1), "h' (3 h) -> 3 h h'", gates("U", "zrn")),
        Row(
            names_of("gru", "bias", 2),
            "2 (3 h) -> (2 3) h",
            gates("b", "zrn") + gates("+b +b b_hn", "zrn"),
            optional="bias",
        ),
        Row.absent(
            names_of("gru", "bias", 2),
            "one row of biases is reset_after=False, where the reset gate acts before the recurrent product: a "
            "different function, which converted weights cannot express. Retrain it with reset_after=True",
            rank=1,
        ),
    ),
    without={
        "bias": "Without biases nothing in the arrays tells reset_after=False, another function: check the layer."
    },
)
