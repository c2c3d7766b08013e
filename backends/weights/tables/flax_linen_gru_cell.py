"""Flax linen's GRUCell: a Dense layer for each gate of the input and of the state; one hidden bias, that of n.

In an `nn.RNN` the names begin with "cell/", in an `nn.Bidirectional` of two with "forward_rnn/cell/".
https://flax-linen.readthedocs.io/en/latest/api_reference/flax.linen/layers.html
"""

from __future__ import annotations

from backends.weights.table import GOES_ON, READS_PADDING, Row, Settings, Source, gates

SOURCE = Source(
    name="flax.linen.GRUCell",
    layer="GRU",
    settings=Settings(needed={"gate_fn": "sigmoid", "activation_fn": "tanh"}),
    warnings=(
        READS_PADDING,
        GOES_ON,
    ),
    directions=(("", "forward_rnn/cell/", "backward_rnn/cell/"),),
    rows=(
        Row("{direction}ir/kernel", "i h -> h i", gates("W", "r")),
        Row("{direction}ir/bias", "h -> h", gates("b", "r"), optional="bias"),
        Row("{direction}iz/kernel", "i h -> h i", gates("W", "z")),
        Row("{direction}iz/bias", "h -> h", gates("b", "z"), optional="bias"),
        Row("{direction}in/kernel", "i h -> h i", gates("W", "n")),
        Row("{direction}in/bias", "h -> h", gates("b", "n"), optional="bias"),
        Row("{direction}hr/kernel", "h' h -> h h'", gates("U", "r")),
        Row("{direction}hz/kernel", "h' h -> h h'", gates("U", "z")),
        Row("{direction}hn/kernel", "h' h -> h h'", gates("U", "n")),
        Row("{direction}hn/bias", "h -> h", gates("b_hn", "n"), optional="bias"),
    ),
)
