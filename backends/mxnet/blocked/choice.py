"""Whether to compute in blocks, in MXNet: by sizes, or by `set_path`."""

from __future__ import annotations

import math
import os

from mxnet import np

from attention_core.errors import check_path

__all__ = ["use_blocks", "set_path"]

forced: str | None = None


def use_blocks(queries: np.ndarray, keys: np.ndarray, least: int, elsewhere: float = math.inf) -> bool:
    """Whether to compute in blocks: from `least` elements on, or as `set_path` says.

    elements = batch · heads · queries · keys · features

    On other devices than a CPU from `elsewhere` on: there blocks take longer, and save memory alone.
    """
    if forced is not None:
        return forced == "blocked"
    here = least if queries.ctx.device_type == "cpu" else elsewhere
    return math.prod(queries.shape) * keys.shape[-2] >= here


def set_path(path: str | None) -> None:
    """Take one path for all sizes, "blocked" or "plain", or the one that suits them: None.

    For the whole process, which begins as the environment variable ATTENTION_PARITY_PATH says at the import.

    Raises: OptionError.
    """
    global forced
    check_path(path)
    forced = path


set_path(os.environ.get("ATTENTION_PARITY_PATH") or None)
