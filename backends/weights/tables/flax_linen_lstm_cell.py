"""Flax linen's LSTMCell, and its OptimizedLSTMCell, which has the same arrays: a layer for each gate.

The bias is on the hidden side.
In an `nn.RNN` the names begin with "cell/", in an `nn.Bidirectional` of two with "forward_rnn/cell/".
https://flax-linen.readthedocs.io/en/latest/api_reference/flax.linen/layers.html
"""

from __future__ import annotations

from backends.weights.table import GOES_ON, READS_PADDING, Row, Settings, Source, gates

SOURCE = Source(
    name="flax.linen.LSTMCell",
    layer="LSTM",
    settings=Settings(needed={"gate_fn": "sigmoid", "activation_fn": "tanh"}),
    warnings=(
        READS_PADDING,
        GOES_ON,
    ),
    directions=(("", "forward_rnn/cell/", "backward_rnn/cell/"),),
    rows=(
        Row("{direction}ii/kernel", "i h -> h i", gates("W", "i")),
        Row("{direction}if/kernel", "i h -> h i", gates("W", "f")),
        Row("{direction}ig/kernel", "i h -> h i", gates("W", "g")),
        Row("{direction}io/kernel", "i h -> h i", gates("W", "o")),
        Row("{direction}hi/kernel", "h' h -> h h'", gates("U", "i")),
        Row("{direction}hi/bias", "h -> h", gates("b", "i"), optional="bias"),
        Row("{direction}hf/kernel", "h' h -> h h'", gates("U", "f")),
        Row("{direction}hf/bias", "h -> h", gates("b", "f"), optional="bias"),
        Row("{direction}hg/kernel", "h' h -> h h'", gates("U", "g")),
        Row("{direction}hg/bias", "h -> h", gates("b", "g"), optional="bias"),
        Row("{direction}ho/kernel", "h' h -> h h'", gates("U", "o")),
        Row("{direction}ho/bias", "h -> h", gates("b", "o"), optional="bias"),
    ),
)
