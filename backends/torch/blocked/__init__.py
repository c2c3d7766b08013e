"""Kernels in PyTorch, which compute a formula in blocks, without its largest array."""

from backends.torch.blocked.additive import blocked_additive_attention, blocked_additive_score
from backends.torch.blocked.choice import set_path, use_blocks
from backends.torch.blocked.dot_product import blocked_dot_attention

__all__ = ["use_blocks", "set_path", "blocked_additive_score", "blocked_additive_attention", "blocked_dot_attention"]
