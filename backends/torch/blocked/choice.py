"""Whether to compute in blocks, in PyTorch: by sizes, or by `set_path`."""

from __future__ import annotations

import math
import os

import torch
from torch.autograd import forward_ad

from attention_core.errors import check_path

__all__ = ["use_blocks", "set_path"]

forced: str | None = None


def use_blocks(queries: torch.Tensor, keys: torch.Tensor, least: int, elsewhere: float = math.inf) -> bool:
    """Whether to compute in blocks: from `least` elements on, or as `set_path` says.

    elements = batch · heads · queries · keys · features

    On other devices than a CPU from `elsewhere` on: there blocks take longer, and save memory alone.

    Only sizes are looked at, so that nothing waits for a device, and a compiled function is specialised to its sizes.
    In forward mode the plain formula is taken: kernels have no tangents.
    """
    if forward_ad._current_level >= 0:  # tensors do not tell, where torch.func has wrapped them once more
        return False
    if forced is not None:
        return forced == "blocked"
    return queries.numel() * keys.shape[-2] >= (least if queries.device.type == "cpu" else elsewhere)


def set_path(path: str | None) -> None:
    """Take one path for all sizes, "blocked" or "plain", or the one that suits them: None.

    For the whole process, which begins as the environment variable ATTENTION_PARITY_PATH says at the import. A
    function of torch.compile is compiled again where this changes.

    Raises: OptionError.
    """
    global forced
    check_path(path)
    forced = path


set_path(os.environ.get("ATTENTION_PARITY_PATH") or None)
