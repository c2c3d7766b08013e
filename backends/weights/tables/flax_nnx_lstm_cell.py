"""Flax nnx's LSTMCell: a layer for each gate of the input and of the state.

The bias is on the hidden side.
In an `nnx.RNN` the names begin with "cell.", in an `nnx.Bidirectional` of two with "forward_rnn.cell.".
https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/nn/recurrent.html
"""

from __future__ import annotations

from backends.weights.table import Row, Source, gates

SOURCE = Source(
    name="flax.nnx.LSTMCell",
    layer="LSTM",
    directions=(("", "forward_rnn.cell.", "backward_rnn.cell."),),
    rows=(
        Row("{direction}ii.kernel", "i h -> h i", gates("W", "i")),
        Row("{direction}if_.kernel", "i h -> h i", gates("W", "f")),
        Row("{direction}ig.kernel", "i h -> h i", gates("W", "g")),
        Row("{direction}io.kernel", "i h -> h i", gates("W", "o")),
        Row("{direction}hi.kernel", "h' h -> h h'", gates("U", "i")),
        Row("{direction}hi.bias", "h -> h", gates("b", "i"), optional="bias"),
        Row("{direction}hf.kernel", "h' h -> h h'", gates("U", "f")),
        Row("{direction}hf.bias", "h -> h", gates("b", "f"), optional="bias"),
        Row("{direction}hg.kernel", "h' h -> h h'", gates("U", "g")),
        Row("{direction}hg.bias", "h -> h", gates("b", "g"), optional="bias"),
        Row("{direction}ho.kernel", "h' h -> h h'", gates("U", "o")),
        Row("{direction}ho.bias", "h -> h", gates("b", "o"), optional="bias"),
    ),
)
