"""Kernels in TensorFlow, which compute a formula in blocks, without its largest array.

Importing the package registers them; `backends.tf.kernels` decides where they compute.
"""

from backends.tf.blocked import decoder_steps
from backends.tf.blocked.additive import blocked_additive_attention, blocked_additive_score
from backends.tf.blocked.dot_product import blocked_dot_attention

__all__ = ["blocked_additive_score", "blocked_additive_attention", "blocked_dot_attention", "decoder_steps"]
