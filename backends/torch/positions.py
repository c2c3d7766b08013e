"""Positions of vectors in a sequence, in PyTorch."""

from __future__ import annotations

import torch

from attention_core.operators.positions import LEARNED_POSITIONS, POSITION_PERMUTATION, SINUSOIDAL_POSITIONS
from attention_core.sinusoids import rates
from backends.torch.arrays import check
from backends.torch.module import Specified, drawn

__all__ = ["SinusoidalPositions", "LearnedPositions", "position_permutation"]


class SinusoidalPositions(Specified):
    """Add the sines and cosines of its position to each input; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset]
    P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(p/10000^(2i/features)); concatenated: all sines first,
    then all cosines

    Sines and cosines are interleaved in the paper; position_permutation returns the order that concatenates them.
    features is an even number.

    Args:
        features: features of an input
        layout (default 'interleaved'): whether sines and cosines alternate, or all sines come first: 'interleaved',
            'concatenated'
    Raises:
        OptionError: an argument is outside its domain
    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762
    Example:
        layer = attention.SinusoidalPositions(features)
        outputs = layer(inputs)
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved") -> None:
        super().__init__(features=features, layout=layout)
        # No buffers: those would follow the module into float32.
        self._high, self._low = (torch.tensor(rate, dtype=torch.float64, device="cpu") for rate in rates(features))

    def forward(self, inputs: torch.Tensor, *, offset: int = 0) -> torch.Tensor:
        """Add the positions, starting at offset.

        outputs[t] = inputs[t] + P[t + offset]
        P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(p/10000^(2i/features)); concatenated: all sines first,
        then all cosines

        Args:
            inputs: (batch, steps, features); one vector for each position
            offset (default 0): position of the first step
        Returns:
            outputs: (batch, steps, features); the inputs with their positions added
        Raises:
            ShapeError, DtypeError: an array does not fit the operator or the other arrays
            OptionError: an argument is outside its domain
        Example:
            layer = attention.SinusoidalPositions(features)
            outputs = layer(inputs)
        """
        self._check("call", offset=offset, inputs=inputs)
        device = torch.device("cpu") if inputs.device.type == "mps" else inputs.device  # which has no float64
        positions = torch.arange(inputs.shape[-2], dtype=torch.float64, device=device)[:, None] + offset
        large, small = positions * self._high.to(device), positions * self._low.to(device)
        pair = [
            torch.sin(large) * torch.cos(small) + torch.cos(large) * torch.sin(small),
            torch.cos(large) * torch.cos(small) - torch.sin(large) * torch.sin(small),
        ]
        interleaved = self.sizes["layout"] == "interleaved"
        table = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
        return inputs + table.to(inputs.dtype).to(inputs.device)


class LearnedPositions(Specified):
    """Add a learned vector for its position to each input.

    outputs[t] = inputs[t] + P[t + offset]

    Args:
        num_positions: positions that have a vector
        features: features of an input
        dtype: floating type of the parameters
        device: where to allocate
    Parameters:
        P: (num_positions, features), one row for each position
    Raises:
        OptionError: an argument is outside its domain
    Source: Gehring et al. 2017, section 3.1, arXiv:1705.03122
    Example:
        layer = attention.LearnedPositions(num_positions, features)
        outputs = layer(inputs)
    """

    specification = LEARNED_POSITIONS

    def __init__(
        self,
        num_positions: int,
        features: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(num_positions=num_positions, features=features)
        self.P = drawn((num_positions, features), features, dtype, device)

    def forward(self, inputs: torch.Tensor, *, offset: int = 0) -> torch.Tensor:
        """Add the positions, starting at offset.

        outputs[t] = inputs[t] + P[t + offset]

        Args:
            inputs: (batch, steps, features); one vector for each position
            offset (default 0): position of the first step
        Returns:
            outputs: (batch, steps, features); the inputs with their positions added
        Raises:
            ShapeError, DtypeError: an array does not fit the operator or the other arrays
            OptionError: an argument is outside its domain
            ShapeError: a step beyond the last position
        Example:
            layer = attention.LearnedPositions(num_positions, features)
            outputs = layer(inputs)
        """
        self._check("call", offset=offset, inputs=inputs)
        end = offset + inputs.shape[-2]
        return inputs + self.P[offset:end]


def position_permutation(features: int, *, device: torch.device | str | None = None) -> torch.Tensor:
    """Return the order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features
    concatenated = interleaved[permutation]

    Args:
        features: features of an input
        device: where to allocate
    Returns:
        permutation: integers (features,); interleaved index of each concatenated feature, int32
    Raises:
        OptionError: an argument is outside its domain
    Source: this specification
    Example:
        permutation = attention.position_permutation(features)
    """
    check(POSITION_PERMUTATION, features=features)
    return torch.arange(features, dtype=torch.int32, device=device).reshape(-1, 2).T.reshape(-1)
