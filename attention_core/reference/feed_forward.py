"""Feed-forward networks of single steps in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from attention_core.operators.feed_forward import FEED_FORWARD
from attention_core.reference.arrays import Specified, linear, promote, sigmoid, tanh
from attention_core.specification import Layer

__all__ = ["FeedForward"]


class FeedForward(Specified):
    """Transform each step on its own by a network with one hidden layer.

    outputs = W_2 h + b_2
    h = f(W_1 inputs + b_1), gated: h = f(W_1 inputs + b_1) * (W_3 inputs + b_3)
    f(x) = max(0, x) (relu), x Φ(x) with Φ(x) = (1 + erf(x/√2))/2 (gelu), x (1 + tanh(√(2/π) (x + 0.044715 x³)))/2
    (gelu_tanh), x/(1 + exp(-x)) (silu)
    """

    specification: Layer = FEED_FORWARD

    def __init__(
        self,
        features: int,
        hidden_size: int,
        *,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(locals())

    def __call__(self, inputs: np.ndarray, *, dropout_mask: np.ndarray | None = None) -> np.ndarray:
        """Transform each step on its own.

        outputs = W_2 h + b_2
        h = f(W_1 inputs + b_1), gated: h = f(W_1 inputs + b_1) * (W_3 inputs + b_3)
        f(x) = max(0, x) (relu), x Φ(x) with Φ(x) = (1 + erf(x/√2))/2 (gelu), x (1 + tanh(√(2/π) (x + 0.044715 x³)))/2
        (gelu_tanh), x/(1 + exp(-x)) (silu)
        """
        self._check("call", inputs=inputs, dropout_mask=dropout_mask)
        hidden = self._hidden_features(promote(inputs))
        if dropout_mask is not None:
            hidden = hidden * promote(dropout_mask)
        return self._linear("2", hidden)

    def _hidden_features(self, inputs: np.ndarray) -> np.ndarray:
        """The hidden features."""
        hidden = self._activate(self._linear("1", inputs))
        return hidden * self._linear("3", inputs) if self.sizes["gated"] else hidden

    def _activate(self, x: np.ndarray) -> np.ndarray:
        """f(x)."""
        return ACTIVATIONS[self.sizes["activation"]](x)

    def _linear(self, which: str, inputs: np.ndarray) -> np.ndarray:
        """W x + b, by the projection of that number."""
        return linear(inputs, self.parameters[f"W_{which}"], self.parameters.get(f"b_{which}"))


def relu(x: np.ndarray) -> np.ndarray:
    """Compute max(0, x)."""
    return np.where(x.real > 0.0, x, 0.0)


def gelu(x: np.ndarray) -> np.ndarray:
    """Compute x Φ(x), Φ the distribution of a standard normal variable."""
    return 0.5 * x * (1.0 + erf(x * 0.5**0.5))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The approximation of gelu by a tanh."""
    return 0.5 * x * (1.0 + tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: np.ndarray) -> np.ndarray:
    """Multiply x by its logistic function."""
    return x * sigmoid(x)


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}


def erf(x: np.ndarray) -> np.ndarray:
    """The error function; of a perturbed array to first order, where a complex step is exact."""
    real = np.vectorize(math.erf, otypes=[float])(x.real)
    if not np.iscomplexobj(x):
        return real
    return real + 2.0 / math.sqrt(math.pi) * np.exp(-x.real * x.real) * 1j * x.imag
