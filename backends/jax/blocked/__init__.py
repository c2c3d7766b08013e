"""Kernels in JAX, which compute a formula in blocks, without its largest array.

Importing the package registers them; `backends.jax.kernels` decides where they compute.
"""

from backends.jax.blocked.additive import blocked_additive_attention, blocked_additive_score
from backends.jax.blocked.dot_product import blocked_dot_attention

__all__ = ["blocked_additive_score", "blocked_additive_attention", "blocked_dot_attention"]
