"""PyTorch's TransformerEncoderLayer: a MultiheadAttention, two Linear and a LayerNorm for each sublayer.

https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html
"""

from __future__ import annotations

from backends.weights.table import COMPUTES_PADDING, NAN, Row, Source, inside
from backends.weights.tables.torch_layer_norm import SOURCE as NORM
from backends.weights.tables.torch_multihead_attention import SOURCE as HEADS

LINEAR = (
    Row("linear1.weight", "f e -> f e", ("feed_forward.W_1",)),
    Row("linear1.bias", "f -> f", ("feed_forward.b_1",), optional="bias"),
    Row("linear2.weight", "e f -> e f", ("feed_forward.W_2",)),
    Row("linear2.bias", "e -> e", ("feed_forward.b_2",), optional="bias"),
)


def table(layer: str, *warnings: str, **attentions: str) -> Source:
    """The table of a layer with these attentions: PyTorch's names with the canonical ones."""
    rows = [row for name, part in attentions.items() for row in inside(name, HEADS.rows, canonical=part)]
    for number in range(1, len(attentions) + 2):
        rows += inside(f"norm{number}", NORM.rows, canonical=f"norm_{number}")
    return Source(
        name=f"torch.nn.{layer}",
        layer=layer,
        warnings=warnings,
        config={"score": "scaled_dot", "rms": False},
        rows=(*rows, *LINEAR),
    )


SOURCE = table("TransformerEncoderLayer", COMPUTES_PADDING, NAN, self_attn="self_attention")
