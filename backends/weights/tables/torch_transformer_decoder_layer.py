"""PyTorch's TransformerDecoderLayer: its encoder layer with a second MultiheadAttention, which reads the memory.

https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerDecoderLayer.html
"""

from __future__ import annotations

from backends.weights.table import NAN
from backends.weights.tables.torch_transformer_encoder_layer import table

SOURCE = table("TransformerDecoderLayer", NAN, self_attn="self_attention", multihead_attn="cross_attention")
