"""The fast paths in JAX: the same numbers in blocks, so that no array over queries, keys and features exists."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention_core.errors import OptionError

__all__ = ["takes_blocks", "force", "blocked_additive_score"]

LEAST = 2**24
"""So many elements, batch · heads · queries · keys · hidden_size, take blocks: measured on a CPU."""

BLOCK = 2**17
"""So many elements are in a block: in float32 half a MiB, which a core's cache holds."""

BOUND = {"float32": 43.0, "float64": 354.0}
"""Up to this magnitude e^(-2x) is a normal number of that dtype, for x and for -x."""

PATHS = ("blocked", "plain")

Gradients = tuple[jax.Array, jax.Array, jax.Array]


def takes_blocks(queries: jax.Array, keys: jax.Array) -> bool:
    """Whether additive_score takes the blocked path for projected queries and keys of these shapes.

    True where batch · heads · queries · keys · hidden_size is at least LEAST, or where `force` says so. False where a
    size is symbolic, as jax.export has them: there is no number of blocks then.
    """
    sizes = (*queries.shape, keys.shape[-2])
    if not all(isinstance(size, int) for size in sizes):
        return False
    return math.prod(sizes) >= LEAST if _forced is None else _forced == "blocked"


def force(path: str | None) -> None:
    """Let all calls in this process take one path, "blocked" or "plain", or (None) the one that suits their sizes.

    The environment variable ATTENTION_PARITY_PATH sets it at import. A function that jax.jit has compiled before keeps
    its path: jax.clear_caches() lets it be compiled again.
    """
    global _forced
    _forced = known(path)


def blocked_additive_score(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """Score each projected query against each projected key by a weighted tanh of their sum, in blocks.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])
    tanh(q + k) = 2 / (1 + e^(-2q) e^(-2k)) - 1

    The exponentials are taken once for each query and each key: each of the (queries · keys · hidden_size) elements
    costs a product, a sum and a division. No exponential overflows, and none vanishes, while all |q| and |k| are at
    most BOUND; a product that overflows gives -1, as it should. With larger numbers, or a NaN, blocks are of plain
    tanh.

    Nothing of a block is kept. The way back computes each block again; with t = tanh(q + k) and the cotangents g,
    gradient of queries[i, h] = w_v[h] sum over j of g[i, j] (1 - t[i, j, h]²), of keys[j, h] the same sum over i, and
    of w_v[h] the sum over i and j of g[i, j] t[i, j, h].

    Shapes: as additive_score. float16 and bfloat16 are computed in float32. Reverse mode can be repeated: a second
    derivative is right, but holds what the first one did not. JAX refuses forward mode (jax.jvp, jax.hessian) with a
    TypeError: force("plain") has it.
    """
    precise = jnp.promote_types(queries.dtype, jnp.float32)
    shape = (*queries.shape[:-1], keys.shape[-2])
    together = math.prod(shape[:-2])
    flat = [array.astype(precise).reshape(together, *array.shape[-2:]) for array in (queries, keys)]
    return score(*flat, w_v.astype(precise)).reshape(shape).astype(queries.dtype)


@jax.custom_vjp
def score(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """The scores of (batch, queries, hidden_size) and (batch, keys, hidden_size)."""
    return jax.lax.cond(narrow(queries, keys), partial(there, FACTORED), partial(there, PLAIN), queries, keys, w_v)


def score_there(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> tuple[jax.Array, Gradients]:
    """The scores, and what the way back reads: the arguments."""
    return score(queries, keys, w_v), (queries, keys, w_v)


def score_back(arguments: Gradients, cotangents: jax.Array) -> Gradients:
    """The gradients of the arguments."""
    branches = partial(back, FACTORED), partial(back, PLAIN)
    return jax.lax.cond(narrow(*arguments[:2]), *branches, *arguments, cotangents)


score.defvjp(score_there, score_back)


class Tanh(NamedTuple):
    """One way to the tanh of sums: first what each side gives by itself, then what two sides give together."""

    side: Callable[[jax.Array], jax.Array]
    join: Callable[[jax.Array, jax.Array], jax.Array]


def exponentials(side: jax.Array) -> jax.Array:
    """e^(-2x). Clipped, which changes nothing where it counts: jax.vmap computes both branches, and keeps one."""
    bound = BOUND[side.dtype.name]
    return jnp.exp(-2.0 * jnp.clip(side, -bound, bound))


FACTORED = Tanh(exponentials, lambda query, key: 2.0 / (1.0 + query * key) - 1.0)
PLAIN = Tanh(lambda side: side, lambda query, key: jnp.tanh(query + key))


def narrow(*sides: jax.Array) -> jax.Array:
    """Whether all exponentials are normal numbers; a NaN is no number."""
    return jnp.all(jnp.stack([jnp.max(jnp.abs(side), initial=0.0) <= BOUND[side.dtype.name] for side in sides]))


def there(tanh: Tanh, queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """The scores, by blocks of queries."""

    def block(queries: jax.Array, keys: jax.Array) -> jax.Array:
        return tanh.join(queries[:, :, None], keys[:, None]) @ w_v

    return in_blocks(block, keys.size // max(len(keys), 1), (tanh.side(queries),), tanh.side(keys))


def back(tanh: Tanh, queries: jax.Array, keys: jax.Array, w_v: jax.Array, cotangents: jax.Array) -> Gradients:
    """The gradients: those of queries by blocks of queries, and those of keys by blocks of keys."""

    def block(both: bool, rows: jax.Array, cotangents: jax.Array, others: jax.Array) -> tuple[jax.Array, ...]:
        # The others come last, which is where XLA sums fast. The barrier: it would divide once for each of two sums.
        joined = jax.lax.optimization_barrier(tanh.join(rows[..., None], others[:, None]))
        slopes = 1.0 - joined * joined
        parts = (slopes, joined) if both else (slopes,)
        return tuple(jnp.einsum("brho,bro->brh", part, cotangents) for part in parts)

    def summed(both: bool, rows: jax.Array, others: jax.Array, cotangents: jax.Array) -> tuple[jax.Array, ...]:
        turned = jnp.swapaxes(tanh.side(others), 1, 2)
        elements = others.size // max(len(others), 1)
        return in_blocks(partial(block, both), elements, (tanh.side(rows), cotangents), turned)

    of_queries, of_weights = summed(True, queries, keys, cotangents)
    (of_keys,) = summed(False, keys, queries, jnp.swapaxes(cotangents, 1, 2))
    return w_v * of_queries, w_v * of_keys, jnp.sum(of_weights, axis=(0, 1))


def in_blocks(function: Callable[..., Any], elements: int, rows: tuple[jax.Array, ...], others: jax.Array) -> Any:
    """function(*rows, others) by blocks of at most BLOCK elements, or of one row: some rows, or some whole sequences.

    Shapes: rows (batch, rows, ...), each row with so many elements in the function; others (batch, ...); the result,
    or each of them, (batch, rows, ...).
    """
    batch, count, _ = rows[0].shape
    high = parted(count, BLOCK // max(elements, 1))
    wide = parted(batch, BLOCK // max(elements * count, 1))

    def cut(array: jax.Array) -> jax.Array:
        array = padded(padded(array, 0, wide), 1, high)
        return jnp.swapaxes(
            array.reshape(len(array) // wide, wide, array.shape[1] // high, high, *array.shape[2:]), 1, 2
        )

    def joined(array: jax.Array) -> jax.Array:
        array = jnp.swapaxes(array, 1, 2)
        parts, _, more, _ = array.shape[:4]
        return array.reshape(parts * wide, more * high, *array.shape[4:])[:batch, :count]

    def sequences(at: tuple[Any, jax.Array]) -> Any:
        rows, others = at
        return jax.lax.map(lambda block: function(*block, others), rows)

    others = padded(others, 0, wide)
    blocks = tuple(cut(array) for array in rows), others.reshape(len(others) // wide, wide, *others.shape[1:])
    return jax.tree.map(joined, jax.lax.map(sequences, blocks))


def parted(size: int, most: int) -> int:
    """The size of equal parts, of at most `most` and at least 1 each."""
    parts = -(-size // max(most, 1))
    return -(-size // max(parts, 1)) or 1


def padded(array: jax.Array, axis: int, part: int) -> jax.Array:
    """The array with zeros after it, so that the axis is a multiple of the part."""
    lacking = -array.shape[axis] % part
    if lacking == 0:
        return array
    return jnp.pad(array, [(0, lacking if at == axis else 0) for at in range(array.ndim)])


def known(path: str | None) -> str | None:
    """A path that there is."""
    if path not in (None, *PATHS):
        raise OptionError(f"force: path is {path!r}, expected one of {', '.join(PATHS)}, or None.")
    return path


_forced = known(os.environ.get("ATTENTION_PARITY_PATH") or None)
