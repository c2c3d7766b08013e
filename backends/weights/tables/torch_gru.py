"""PyTorch's GRU: gates r, z, n joined in one axis, and two biases, of which the hidden one acts by itself for n alone.

https://docs.pytorch.org/docs/stable/generated/torch.nn.GRU.html
"""

from __future__ import annotations

from backends.weights.table import READS_PADDING, Row, Source, gates

SOURCE = Source(
    name="torch.nn.GRU",
    layer="GRU",
    warnings=(READS_PADDING,),
    directions=(("", "", "_reverse"),),
    rows=(
        Row("weight_ih_l{layer}{direction}", "(3 h) i -> 3 h i", gates("W", "rzn")),
        Row("weight_hh_l{layer}{direction}", "(3 h) h' -> 3 h h'", gates("U", "rzn")),
        Row("bias_ih_l{layer}{direction}", "(3 h) -> 3 h", gates("b", "rzn"), optional="bias"),
        Row("bias_hh_l{layer}{direction}", "(3 h) -> 3 h", gates("+b +b b_hn", "rzn"), optional="bias"),
    ),
)
