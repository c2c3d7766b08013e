"""Feed-forward networks of single steps, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from attention_core.operators.feed_forward import FEED_FORWARD
from backends.torch.module import Specified

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
        device: where to allocate
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
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        self.W_1 = nn.Linear(features, hidden_size, bias=bias, dtype=dtype, device=device)
        self.W_2 = nn.Linear(hidden_size, features, bias=bias, dtype=dtype, device=device)
        self.W_3 = nn.Linear(features, hidden_size, bias=bias, dtype=dtype, device=device) if gated else None
        self.activation = ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: torch.Tensor, *, dropout_mask: torch.Tensor | None = None) -> torch.Tensor:
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
        hidden = self.activation(self.W_1(inputs))
        if self.W_3 is not None:
            hidden = hidden * self.W_3(inputs)
        hidden = self.dropout(hidden) if dropout_mask is None else hidden * dropout_mask
        return self.W_2(hidden)


ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}
