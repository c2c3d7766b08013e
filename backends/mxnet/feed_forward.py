"""Feed-forward networks of single steps, in MXNet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import mxnet as mx
from mxnet import np, npx

from attention_core.operators.feed_forward import FEED_FORWARD
from backends.mxnet.module import Specified, draw_mask, initialise, linear, project

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
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
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
        layer = attention.FeedForward(features, hidden_size)
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(locals())
        with self.name_scope():
            self.W_1 = linear(features, hidden_size, use_bias=bias, dtype=dtype)
            self.W_2 = linear(hidden_size, features, use_bias=bias, dtype=dtype)
            self.W_3 = linear(features, hidden_size, use_bias=bias, dtype=dtype) if gated else None
        initialise(self)

    def __call__(self, inputs: np.ndarray, *, dropout_mask: np.ndarray | None = None) -> np.ndarray:
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
        return super().__call__(inputs, dropout_mask)

    def forward(self, inputs: np.ndarray, dropout_mask: np.ndarray | None) -> np.ndarray:
        """Transform each step; Gluon enters here."""
        if inputs.size == 0:  # a sum over nothing fails in a backward of MXNet
            return np.zeros_like(inputs)
        hidden = ACTIVATIONS[self.sizes["activation"]](project(self.W_1, inputs))
        if self.W_3 is not None:
            hidden = hidden * project(self.W_3, inputs)
        if dropout_mask is None:
            dropout_mask = draw_mask(self.sizes["dropout"], hidden)
        return project(self.W_2, hidden if dropout_mask is None else hidden * dropout_mask)


def gelu(x: np.ndarray) -> np.ndarray:
    """Compute x Φ(x), Φ the distribution of a standard normal variable."""
    # The gradient of npx.erf has the digits of float32. This one is Φ(x) + x φ(x): the last term is 0.
    fixed = x.detach()
    below = 0.5 * (1.0 + npx.erf(fixed * 0.5**0.5))
    density = np.exp(-0.5 * fixed * fixed) * (2.0 * math.pi) ** -0.5
    return x * below + (x - fixed) * fixed * density


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The approximation of gelu by a tanh."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": npx.relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * npx.sigmoid(x),
}
