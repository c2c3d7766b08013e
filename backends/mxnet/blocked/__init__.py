"""Kernels in MXNet, which compute a formula in blocks, without its largest array.

Importing the package registers them; `backends.mxnet.kernels` decides where they compute.
"""

from backends.mxnet.blocked.additive import blocked_additive_score

__all__ = ["blocked_additive_score"]
