"""PyTorch's Transformer between the nn.Embedding of each language and the nn.Linear that a model has around it.

Both stacks end with a norm, also with norm_first=False: that is last_norm=True.
https://docs.pytorch.org/docs/stable/generated/torch.nn.Transformer.html
"""

from __future__ import annotations

from backends.weights.table import COMPUTES_PADDING, NAN, SCALES, Source, inside
from backends.weights.tables.torch_layer_norm import SOURCE as NORM
from backends.weights.tables.torch_transformer_decoder import DENSE
from backends.weights.tables.torch_transformer_decoder_layer import SOURCE as DECODER_LAYER
from backends.weights.tables.torch_transformer_encoder import CONFIG, stack
from backends.weights.tables.torch_transformer_encoder_layer import SOURCE as ENCODER_LAYER

SOURCE = Source(
    name="torch.nn.Transformer",
    layer="TransformerTranslator",
    warnings=(COMPUTES_PADDING, NAN),
    notes=(SCALES,),
    config=CONFIG,
    rows=(
        *inside("encoder", stack(ENCODER_LAYER, NORM.rows, "s")),
        *inside("decoder", (*stack(DECODER_LAYER, NORM.rows, "t"), *DENSE)),
    ),
)
