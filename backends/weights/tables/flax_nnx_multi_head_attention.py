"""Flax nnx's MultiHeadAttention: the arrays of linen's, with dots in their names.

https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/nn/attention.html
"""

from __future__ import annotations

from backends.weights.table import with_dots
from backends.weights.tables.flax_linen_multi_head_attention import SOURCE as LINEN

SOURCE = with_dots(LINEN, "flax.nnx.MultiHeadAttention")
