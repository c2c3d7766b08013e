"""Feed-forward networks of single steps, in JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from attention_core.operators.feed_forward import FEED_FORWARD
from backends.jax.module import Specified, at_dtype, dropout_layer

__all__ = ["FeedForward"]


class FeedForward(Specified):
    """Transform each step on its own by a network with one hidden layer.

    outputs = W_2 h + b_2
    h = f(W_1 inputs + b_1), gated: h = f(W_1 inputs + b_1) * (W_3 inputs + b_3)
    f(x) = max(0, x) (relu), x Φ(x) with Φ(x) = (1 + erf(x/√2))/2 (gelu), x (1 + tanh(√(2/π) (x + 0.044715 x³)))/2
    (gelu_tanh), x/(1 + exp(-x)) (silu)

    Args:
        features: features of a step
        hidden_size: hidden features of the feed-forward network
        activation (default 'relu'): max(0, x), x Φ(x), its tanh form, or x σ(x): 'relu', 'gelu', 'gelu_tanh', 'silu'
        gated (default False): whether a second projection multiplies the hidden features
        bias (default True): whether the projections have biases
        dropout (default 0.0): dropout rate of the hidden features in training
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Parameters:
        W_1: (hidden_size, features), projects to the hidden features
        W_2: (features, hidden_size), projects back
        W_3: (hidden_size, features), projects to the factors, if gated
        b_1: (hidden_size,), biases of the hidden features, if bias
        b_2: (features,), biases of the outputs, if bias
        b_3: (hidden_size,), biases of the factors, if bias and gated
    Source: Vaswani et al. 2017, section 3.3, arXiv:1706.03762; gated: Shazeer 2020, section 2, arXiv:2002.05202; gelu:
    Hendrycks and Gimpel 2016, arXiv:1606.08415
    Example:
        layer = attention.FeedForward(features, hidden_size, rngs=nnx.Rngs(0))
        outputs = layer(inputs)
    """

    specification = FEED_FORWARD

    def __init__(
        self,
        features: int,
        hidden_size: int,
        *,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(locals())
        linear = partial(nnx.Linear, use_bias=bias, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.W_1 = linear(features, hidden_size)
        self.W_2 = linear(hidden_size, features)
        self.W_3 = linear(features, hidden_size) if gated else None
        self.dropout = dropout_layer(dropout, rngs)

    @at_dtype
    def __call__(self, inputs: jax.Array, *, dropout_mask: jax.Array | None = None) -> jax.Array:
        """Transform each step on its own.

        outputs = W_2 h + b_2
        h = f(W_1 inputs + b_1), gated: h = f(W_1 inputs + b_1) * (W_3 inputs + b_3)
        f(x) = max(0, x) (relu), x Φ(x) with Φ(x) = (1 + erf(x/√2))/2 (gelu), x (1 + tanh(√(2/π) (x + 0.044715 x³)))/2
        (gelu_tanh), x/(1 + exp(-x)) (silu)

        Args:
            inputs: (batch, steps, features); one vector for each step
            dropout_mask (default None): (batch, steps, hidden_size); factor of each hidden feature
        Returns:
            outputs: (batch, steps, features); the transformed vectors
        """
        self._check("call", inputs=inputs, dropout_mask=dropout_mask)
        hidden = ACTIVATIONS[self.sizes["activation"]](self.W_1(inputs))
        if self.W_3 is not None:
            hidden = hidden * self.W_3(inputs)
        hidden = self.dropout(hidden) if dropout_mask is None else hidden * dropout_mask
        return self.W_2(hidden)


def gelu_tanh(x: jax.Array) -> jax.Array:
    """GELU's approximation, x σ(2u) = x (1 + tanh u)/2 with u = √(2/π) (x + 0.044715 x³).

    Where nnx.gelu follows a product, XLA leaves both to cuBLASLt, which is off by 1e-10 in float64.
    """
    near = jnp.clip(x, -32.0, 32.0)  # beyond, the tanh is 1 or -1; the cube is inf in float16, and its gradient NaN
    return x * nnx.sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (near + 0.044715 * near**3))


ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "relu": nnx.relu,
    "gelu": partial(nnx.gelu, approximate=False),
    "gelu_tanh": gelu_tanh,
    "silu": nnx.silu,
}
