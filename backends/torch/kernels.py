"""The one way to fast paths in PyTorch: which kernel computes a formula, by sizes or as `set_path` says.

A formula asks for a kernel by name, and imports none. A kernel imports the formula that it replaces, and registers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch.autograd import forward_ad

from attention_core.errors import check_path

__all__ = ["use_blocks", "set_path"]

Compute = TypeVar("Compute", bound=Callable[..., Any])


class Kernel(NamedTuple):
    """A function with the arguments of a formula, and the condition on them under which it computes."""

    compute: Callable[..., Any]
    serves: Callable[..., bool]


registry: dict[str, list[Kernel]] = {}
"""The kernels of each formula, by name, in the order in which they are asked."""

forced: str | None = None


def register(name: str, serves: Callable[..., bool]) -> Callable[[Compute], Compute]:
    """Register the decorated function as a kernel of a formula."""

    def add(compute: Compute) -> Compute:
        registry.setdefault(name, []).append(Kernel(compute, serves))
        return compute

    return add


def of(name: str, *arguments: Any) -> Callable[..., Any] | None:
    """Return the first kernel of a formula that serves these arguments; None if the plain formula computes."""
    for kernel in registry.get(name, ()):
        if kernel.serves(*arguments):
            return kernel.compute
    return None


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
