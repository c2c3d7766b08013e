"""PyTorch's TransformerEncoder behind the nn.Embedding that a model has before it, and that of learned positions.

The last norm is optional, as that of last_norm.
https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoder.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backends.weights.table import COMPUTES_PADDING, NAN, SCALES, Row, Source, inside
from backends.weights.tables.torch_layer_norm import SOURCE as NORM
from backends.weights.tables.torch_transformer_encoder_layer import SOURCE as LAYER

CONFIG = {"score": "scaled_dot", "rms": False}
OPTIONAL = tuple(replace(row, optional=f"last {row.optional}") for row in NORM.rows)


def stack(layer: Source, norm: Sequence[Row], tokens: str) -> tuple[Row, ...]:
    """The rows of a stack of that layer and its last norm; tokens names the axis of its vocabulary."""
    return (
        Row("embedding.weight", f"{tokens} e -> {tokens} e", ("embedding",)),
        Row("positions.weight", "n e -> n e", ("positions.P",), optional="positions"),
        *inside("layers.{layer}", layer.rows),
        *inside("norm", norm),
    )


SOURCE = Source(
    name="torch.nn.TransformerEncoder",
    layer="TransformerEncoder",
    warnings=(COMPUTES_PADDING, NAN),
    notes=(SCALES,),
    config=CONFIG,
    rows=stack(LAYER, OPTIONAL, "s"),
)
