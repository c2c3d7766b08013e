"""PyTorch's TransformerDecoder between the nn.Embedding and the nn.Linear that a model has around it.

The last norm is optional, as that of last_norm.
https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerDecoder.html
"""

from __future__ import annotations

from backends.weights.table import NAN, SCALES, Row, Source
from backends.weights.tables.torch_transformer_decoder_layer import SOURCE as LAYER
from backends.weights.tables.torch_transformer_encoder import CONFIG, OPTIONAL, stack

DENSE = (Row("dense.weight", "t e -> t e", ("dense.W",)), Row("dense.bias", "t -> t", ("dense.b",)))

SOURCE = Source(
    name="torch.nn.TransformerDecoder",
    layer="TransformerDecoder",
    warnings=(NAN,),
    notes=(SCALES,),
    config=CONFIG,
    rows=(*stack(LAYER, OPTIONAL, "t"), *DENSE),
)
