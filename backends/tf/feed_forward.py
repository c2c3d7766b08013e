"""Feed-forward networks of single steps, in TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import keras
import tensorflow as tf

from attention_core.operators.feed_forward import FEED_FORWARD
from backends.tf.module import Specified, mode_of, project

__all__ = ["FeedForward"]


@keras.saving.register_keras_serializable(package="attention_parity")
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
        name: the layer's name in Keras
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.W_1 = self._projection("W_1", features, hidden_size, bias)
        self.W_2 = self._projection("W_2", hidden_size, features, bias)
        self.W_3 = self._projection("W_3", features, hidden_size, bias) if gated else None
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def __call__(
        self, inputs: tf.Tensor, *, dropout_mask: tf.Tensor | None = None, training: bool | None = None
    ) -> tf.Tensor:
        """Transform each step on its own.

        outputs = W_2 h + b_2
        h = f(W_1 inputs + b_1), gated: h = f(W_1 inputs + b_1) * (W_3 inputs + b_3)
        f(x) = max(0, x) (relu), x Φ(x) with Φ(x) = (1 + erf(x/√2))/2 (gelu), x (1 + tanh(√(2/π) (x + 0.044715 x³)))/2
        (gelu_tanh), x/(1 + exp(-x)) (silu)

        Args:
            inputs: (batch, steps, features); one vector for each step
            dropout_mask (default None): (batch, steps, hidden_size); factor of each hidden feature
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            outputs: (batch, steps, features); the transformed vectors
        """
        self._check("call", inputs=inputs, dropout_mask=dropout_mask)
        return super().__call__(inputs, dropout_mask=dropout_mask, **mode_of(training))

    def call(
        self, inputs: tf.Tensor, *, dropout_mask: tf.Tensor | None = None, training: bool | None = None
    ) -> tf.Tensor:
        """Transform each step; Keras enters here."""
        hidden = ACTIVATIONS[self.sizes["activation"]](project(self.W_1, inputs))
        if self.W_3 is not None:
            hidden = hidden * project(self.W_3, inputs)
        hidden = self.dropout(hidden, training=training) if dropout_mask is None else hidden * dropout_mask
        return project(self.W_2, hidden)


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Compute x Φ(x), Φ the distribution of a standard normal variable."""
    # In float64 tf.nn.gelu has the digits of float32.
    return 0.5 * x * (1.0 + tf.math.erf(x * 0.5**0.5))


def gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    """The approximation of gelu by a tanh."""
    near = tf.clip_by_value(x, -32.0, 32.0)  # beyond, the tanh is 1 or -1; in float16 the cube is inf, its gradient NaN
    return 0.5 * x * (1.0 + tf.math.tanh((2.0 / math.pi) ** 0.5 * (near + 0.044715 * near * near * near)))


ACTIVATIONS: Mapping[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "relu": tf.nn.relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": tf.nn.silu,
}
