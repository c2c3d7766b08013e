"""Whether to compute in blocks, in JAX: by sizes, or by `set_path`."""

from __future__ import annotations

import math
import os

import jax

from attention_core.errors import check_path

__all__ = ["use_blocks", "set_path"]

forced: str | None = None


def use_blocks(
    queries: jax.Array | jax.ShapeDtypeStruct, keys: jax.Array, least: int, elsewhere: float = math.inf
) -> bool:
    """Whether to compute in blocks: from `least` elements on, or as `set_path` says.

    elements = batch · heads · queries · keys · features

    On other devices than a CPU from `elsewhere` on: there blocks take longer, and save memory alone. The device is
    JAX's default one, since a traced array has none.

    A size that is symbolic, as jax.export has them, counts as small, forced or not: there is no number of blocks then.
    """
    sizes = (*queries.shape, keys.shape[-2])
    if not all(isinstance(size, int) for size in sizes):
        return False
    if forced is not None:
        return forced == "blocked"
    return math.prod(sizes) >= (least if jax.default_backend() == "cpu" else elsewhere)


def set_path(path: str | None) -> None:
    """Take one path for all sizes, "blocked" or "plain", or the one that suits them: None.

    For the whole process, which begins as the environment variable ATTENTION_PARITY_PATH says at the import. Where the
    path changes, JAX's caches are cleared: what jax.jit has compiled, loops inside decoders included, is compiled anew.

    Raises: OptionError.
    """
    global forced
    check_path(path)
    if path != forced:
        jax.clear_caches()
    forced = path


set_path(os.environ.get("ATTENTION_PARITY_PATH") or None)
