"""Flax nnx's GRUCell: gates r, z, n joined in one axis, and no hidden bias at all: it has no b_hn.

https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/nn/recurrent.html
"""

from __future__ import annotations

from backends.weights.table import GOES_ON, READS_PADDING, Fixed, Row, Settings, Source, gates

SOURCE = Source(
    name="flax.nnx.GRUCell",
    layer="GRU",
    settings=Settings(needed={"gate_fn": "sigmoid", "activation_fn": "tanh"}),
    warnings=(
        READS_PADDING,
        GOES_ON,
    ),
    directions=(("", "forward_rnn.cell.", "backward_rnn.cell."),),
    rows=(
        Row("{direction}dense_i.kernel", "i (3 h) -> 3 h i", gates("W", "rzn")),
        Row("{direction}dense_i.bias", "(3 h) -> 3 h", gates("b", "rzn"), optional="bias"),
        Row("{direction}dense_h.kernel", "h' (3 h) -> 3 h h'", gates("U", "rzn")),
    ),
    fixed={
        "b_hn": Fixed(
            "the cell has no hidden bias. Replace its dense_h by a Linear with use_bias=True and bias [0, 0, b_hn], or "
            "use flax.linen.GRUCell or backends.jax.GRU"
        )
    },
)
