"""Keras' LSTM: gates i, f, g (Keras: c), o, kernels (inputs, outputs), one bias.

The second spelling is that of a .weights.h5 file, which numbers a layer's variables.
https://keras.io/api/layers/recurrent_layers/lstm/
"""

from __future__ import annotations

from backends.weights.table import Row, Source, gates

SOURCE = Source(
    name="keras.LSTM",
    layer="LSTM",
    directions=(("", "forward_*/", "backward_*/"), ("", "forward_layer/", "backward_layer/"), ("",)),
    rows=(
        Row("{direction}lstm_cell/kernel | {direction}cell/vars/0 | kernel", "i (4 h) -> 4 h i", gates("W", "ifgo")),
        Row(
            "{direction}lstm_cell/recurrent_kernel | {direction}cell/vars/1 | recurrent_kernel",
            "h' (4 h) -> 4 h h'",
            gates("U", "ifgo"),
        ),
        Row(
            "{direction}lstm_cell/bias | {direction}cell/vars/2 | bias",
            "(4 h) -> 4 h",
            gates("b", "ifgo"),
            optional="bias",
        ),
    ),
)
