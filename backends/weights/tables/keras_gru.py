"""Keras' GRU with reset_after=True, its default: gates z, r, n, kernels (inputs, outputs), one bias with two rows.

The second spelling is that of a .weights.h5 file, which numbers a layer's variables.
https://keras.io/api/layers/recurrent_layers/gru/
"""

from __future__ import annotations

from backends.weights.table import Row, Source, gates

SOURCE = Source(
    name="keras.GRU",
    layer="GRU",
    directions=(("", "forward_*/", "backward_*/"), ("", "forward_layer/", "backward_layer/"), ("",)),
    rows=(
        Row("{direction}gru_cell/kernel | {direction}cell/vars/0 | kernel", "i (3 h) -> 3 h i", gates("W", "zrn")),
        Row(
            "{direction}gru_cell/recurrent_kernel | {direction}cell/vars/1 | recurrent_kernel",
            "h' (3 h) -> 3 h h'",
            gates("U", "zrn"),
        ),
        Row(
            "{direction}gru_cell/bias | {direction}cell/vars/2 | bias",
            "2 (3 h) -> (2 3) h",
            gates("b", "zrn") + gates("+b +b b_hn", "zrn"),
            optional="bias",
        ),
        Row.refused(
            "{direction}gru_cell/bias | {direction}cell/vars/2 | bias",
            "one row of biases is reset_after=False, where the reset gate acts before the recurrent product: another "
            "function, which no weights turn into this one. Train it anew with reset_after=True",
            rank=1,
        ),
    ),
    without={
        "bias": "Without biases nothing in the arrays tells reset_after=False, another function: check the layer."
    },
)
