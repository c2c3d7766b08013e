"""Dot-product scores in TensorFloat-32, PyTorch: a target that has to be red in float32, and green in float64."""

import os

os.environ.pop("NVIDIA_TF32_OVERRIDE", None)  # it would forbid what is asked for below

import torch

from backends.torch import runtime

__all__ = ["runtime", "dot_score"]


def dot_score(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The products of queries and keys, of whose float32 factors ten bits are kept; a CPU rounds them itself."""
    torch.backends.cuda.matmul.allow_tf32 = True
    if not queries.is_cuda and queries.dtype == torch.float32:
        queries, keys = (array.contiguous().view(torch.int32) & ~0x1FFF for array in (queries, keys))
        queries, keys = queries.view(torch.float32), keys.view(torch.float32)
    return queries @ keys.mT
