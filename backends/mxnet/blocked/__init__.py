"""Kernels in MXNet, which compute a formula in blocks, without its largest array."""

from backends.mxnet.blocked.additive import blocked_additive_score
from backends.mxnet.blocked.choice import set_path, use_blocks

__all__ = ["use_blocks", "set_path", "blocked_additive_score"]
