"""The base class of layers in JAX: options, the check of a call, initial values and dropout masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core import freeze
from jax.typing import DTypeLike

from attention_core.errors import check, check_options, check_tokens
from attention_core.specification import DTYPES, Layer
from backends.jax.graphs import is_known

Method = TypeVar("Method", bound=Callable[..., Any])

UNCAST = ("noise",)
"""Arguments that keep their dtype: half precision would round a number that is drawn below 1 to 1."""


class Specified(nnx.Module):
    """A layer of the specification, with checked options and checked calls.

    A constructor hands over its arguments, `locals()`, of which the specification's options are taken. A public method
    checks its arguments, once, and calls methods that begin with an underscore, which check nothing.
    """

    specification: Layer

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        dtype = arguments.get("dtype")
        self.dtype = None if dtype is None else jnp.dtype(dtype)
        options = {option.name: arguments[option.name] for option in self.specification.options}
        # For a graphdef to be a static argument of jax.jit, all in a layer that is no array must have a hash.
        self.sizes: Mapping[str, Any] = freeze(check_options(self.specification, **options))

    def _check(self, method: str, **arguments: Any) -> None:
        """Refuse arguments that do not fit the layer or each other."""
        operator = self.specification.method(method)
        operator = operator.time_major if self.sizes.get("time_major") else operator
        if self.dtype is None:
            check(operator, self.sizes, dtype_of(self), **arguments)
        else:
            check(operator, self.sizes, self.dtype, DTYPES["floating"], **arguments)


def draw_parameter(shape: tuple[int, ...], fan_in: int, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.Param:
    """Return a parameter with values from the stream of parameters, uniform in ±1/√fan_in."""
    bound = fan_in**-0.5
    return nnx.Param(jax.random.uniform(rngs.params(), shape, dtype, -bound, bound))


def dtype_of(layer: nnx.Module) -> jnp.dtype | None:
    """Return the floating type of a layer's parameters; None if it has none."""
    return next((node.dtype for _, node in nnx.iter_graph(layer) if isinstance(node, nnx.Param)), None)


def draw_mask(
    dropout: nnx.Dropout, like: jax.Array | jax.ShapeDtypeStruct, *, shape: Sequence[int] | None = None
) -> jax.Array | None:
    """Draw a dropout mask, in the shape of an array unless another is given; None where nothing is dropped."""
    if not drops(dropout):
        return None
    return dropout(jnp.ones(like.shape if shape is None else shape, like.dtype))


def check_ids(title: str, name: str, tokens: jax.Array, vocab_size: int) -> None:
    """Refuse token ids outside the vocabulary, where their values are known."""
    if is_known(tokens) and tokens.size and np.issubdtype(tokens.dtype, np.integer):
        # By NumPy: while tracing, jax.numpy would turn a known array into an unknown minimum.
        values = np.asarray(tokens)
        check_tokens(title, name, int(values.min()), int(values.max()), vocab_size)


# ------------------------------------------------------------------------------------------------ particular to JAX


def at_dtype(method: Method) -> Method:
    """Have a public method cast its floating arrays to the layer's dtype, if it was made with one."""

    @wraps(method)
    def call(layer: Specified, *arguments: Any, **keywords: Any) -> Any:
        def cast_leaf(array: Any) -> Any:
            floating = hasattr(array, "dtype") and jnp.issubdtype(array.dtype, jnp.floating)
            return jnp.asarray(array, layer.dtype) if floating else array

        if layer.dtype is not None:
            kept = {name: keywords.pop(name) for name in UNCAST if name in keywords}
            arguments, keywords = jax.tree.map(cast_leaf, (arguments, keywords))
            keywords |= kept
        return method(layer, *arguments, **keywords)

    return call  # type: ignore[return-value]


def cast(parameter: nnx.Param, like: jax.Array) -> jax.Array:
    """Return the values of a parameter in the dtype of the array that they meet."""
    return parameter[...].astype(like.dtype)


def dropout_layer(rate: float, rngs: nnx.Rngs | None) -> nnx.Dropout:
    """Return dropout that asks for a stream of random numbers only where it will draw from it."""
    # nnx.Dropout casts by numpy.float64, which is a float, too; and it refuses nnx.Rngs(params=0) even at rate 0.
    return nnx.Dropout(float(rate), rngs=rngs if rate > 0.0 else None)


def drops(dropout: nnx.Dropout) -> bool:
    """Whether anything is dropped."""
    return not dropout.deterministic and dropout.rate > 0.0
