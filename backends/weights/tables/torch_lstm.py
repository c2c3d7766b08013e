"""PyTorch's LSTM: gates i, f, g, o joined in one axis, and two biases that add up.

https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
"""

from __future__ import annotations

from backends.weights.table import READS_PADDING, Row, Source, gates

SOURCE = Source(
    name="torch.nn.LSTM",
    layer="LSTM",
    warnings=(READS_PADDING,),
    directions=(("", "", "_reverse"),),
    rows=(
        Row("weight_ih_l{layer}{direction}", "(4 h) i -> 4 h i", gates("W", "ifgo")),
        Row("weight_hh_l{layer}{direction}", "(4 h) h' -> 4 h h'", gates("U", "ifgo")),
        Row("bias_ih_l{layer}{direction}", "(4 h) -> 4 h", gates("b", "ifgo"), optional="bias"),
        Row("bias_hh_l{layer}{direction}", "(4 h) -> 4 h", gates("+b", "ifgo"), optional="bias"),
        Row.absent("weight_hr_l{layer}{direction}", "proj_size projects the outputs; LSTM here has no projection"),
    ),
)
