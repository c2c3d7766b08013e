"""PyTorch's RMSNorm over the last axis. Its own epsilon is that of the dtype, 1.2e-7 in float32.

https://docs.pytorch.org/docs/stable/generated/torch.nn.RMSNorm.html
"""

from __future__ import annotations

from backends.weights.table import Row, Source

SOURCE = Source(name="torch.nn.RMSNorm", layer="RMSNorm", rows=(Row("weight", "e -> e", ("g",)),))
