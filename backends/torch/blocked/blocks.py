"""Shared parts of the kernels in PyTorch: blocks of rows and sequences, and the plain formula behind them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch

from backends.torch.arrays import autocast_dtype
from backends.torch.masking import precise

BOUND = {torch.float32: 20.0, torch.float64: 160.0}
"""How large projections may be for exponentials: far enough from overflow for sums of them, and of their products with
gradients."""

BY_SCORES = 2**18
"""The scores of a block of rows in attention."""


Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def without_autocast(kernel: Kernel) -> Kernel:
    """Under autocast, cast the tensors to its dtype and run the kernel without it: it computes in float32 by itself."""

    @functools.wraps(kernel)
    def run(queries: torch.Tensor, *arguments: Any) -> Any:
        dtype = autocast_dtype(queries)
        if dtype is None:
            return kernel(queries, *arguments)
        with autocast_off(queries):
            return kernel(*(_cast(argument, dtype) for argument in (queries, *arguments)))

    return cast(Kernel, run)


def autocast_off(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off where it is on for the device of the tensor."""
    on = autocast_dtype(tensor) is not None
    return torch.autocast(tensor.device.type, enabled=False) if on else nullcontext()


def _cast(argument: Any, dtype: torch.dtype) -> Any:
    """Cast a floating tensor as autocast does, which leaves float64 as it is."""
    castable = isinstance(argument, torch.Tensor) and argument.is_floating_point() and argument.dtype != torch.float64
    return argument.to(dtype) if castable else argument


def plain_gradients(
    formula: Callable[..., tuple[torch.Tensor, ...]],
    arguments: tuple[torch.Tensor, ...],
    cotangents: tuple[torch.Tensor | None, ...],
) -> tuple[torch.Tensor, ...]:
    """The gradients of the plain formula."""
    with torch.enable_grad():
        given = [array.detach().requires_grad_() for array in arguments]
        pairs = [(result, g) for result, g in zip(formula(*given), cotangents, strict=True) if g is not None]
        return torch.autograd.grad([result for result, _ in pairs], given, [g for _, g in pairs])


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32 at least, with batch and heads as one axis."""
    return precise(tensor).flatten(0, -3)


def blocks_of_scores(scores: torch.Tensor, elements: int, *, width: int = 1) -> Iterator[tuple[slice, slice]]:
    """Slices of batch and queries: some sequences in one block, or some rows of one, and a row at least."""
    batch, queries, keys = scores.shape
    row = keys * width
    sequences, rows = max(1, elements // (queries * row)), min(queries, max(1, elements // row))
    for n in range(0, batch, sequences):
        for first in range(0, queries, rows):
            yield slice(n, n + sequences), slice(first, first + rows)


def along(info: Any, in_dims: tuple[int | None, ...], arguments: tuple[torch.Tensor, ...]) -> Iterator[Any]:
    """The arguments at each position of the axis that torch.func.vmap adds."""
    for i in range(info.batch_size):
        yield tuple(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True))


def map_axis(
    function: type[torch.autograd.Function],
    info: Any,
    in_dims: tuple[int | None, ...],
    arguments: tuple[torch.Tensor, ...],
) -> tuple[tuple[torch.Tensor | None, ...], tuple[int | None, ...]]:
    """Several outputs at each position of the axis that torch.func.vmap adds, and where they have it: first."""
    results = list(zip(*(function.apply(*given) for given in along(info, in_dims, arguments)), strict=True))
    stacked = tuple(None if array[0] is None else torch.stack(array) for array in results)
    return stacked, tuple(None if array is None else 0 for array in stacked)


def open_sequences(
    queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None
) -> Iterator[tuple[slice, int, torch.Tensor | None]]:
    """Yield blocks of sequences, or heads, with the number of keys up to the last open one and which are hidden."""
    (*lead, count, _), n = queries.shape, keys.shape[-2]
    every, together = math.prod(lead), max(1, BY_SCORES // max(1, count * n))
    for first in range(0, every, together):
        sequences = slice(first, min(first + together, every))
        if mask is None or n == 0:
            yield sequences, n, None
            continue
        allowed = mask.expand(*lead, -1, n)[torch.unravel_index(torch.arange(sequences.start, sequences.stop), lead)]
        length = int((allowed.any(dim=0).any(dim=0) * torch.arange(1, n + 1)).max())
        hidden = ~allowed[..., :length]
        yield sequences, length, hidden.expand(-1, count, -1) if hidden.any() else None


def blocks_of_rows(queries: int, keys: int, *, least: int = 1) -> Iterator[slice]:
    """Yield rows of queries: at least `least`, and as many as BY_SCORES scores allow; none without keys."""
    rows = max(least, BY_SCORES // max(keys, 1))
    for first in range(0, queries if keys else 0, rows):
        yield slice(first, first + rows)


def visible(tensor: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    """In float32 at least, and 0 where no query may attend to it: a factor of 0 does not silence a NaN."""
    tensor = precise(tensor)
    return tensor if hidden is None else tensor.masked_fill(hidden.all(dim=-2)[..., None], 0.0)
