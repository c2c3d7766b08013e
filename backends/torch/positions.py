"""Positions of vectors in a sequence, in PyTorch."""

from __future__ import annotations

import torch
from torch import nn

from attention_core.errors import check, check_length, check_options
from attention_core.operators.positions import LEARNED_POSITIONS, POSITION_PERMUTATION, SINUSOIDAL_POSITIONS
from attention_core.sinusoids import rates
from backends.torch.module import drawn

__all__ = ["SinusoidalPositions", "LearnedPositions", "position_permutation"]


class SinusoidalPositions(nn.Module):
    """Add to each input the sines and cosines of its position; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(...)

    With layout="concatenated", all sines stand before all cosines.

    Shapes: inputs (batch, steps, features), as is the result.
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved") -> None:
        super().__init__()
        self.sizes = check_options(self.specification, features=features, layout=layout)
        # No buffers: those would follow the module into float32.
        self.high, self.low = (torch.tensor(rate, dtype=torch.float64, device="cpu") for rate in rates(features))

    def forward(self, inputs: torch.Tensor, *, offset: int = 0) -> torch.Tensor:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, inputs=inputs)
        device = torch.device("cpu") if inputs.device.type == "mps" else inputs.device  # which has no float64
        positions = torch.arange(inputs.shape[-2], dtype=torch.float64, device=device)[:, None] + offset
        large, small = positions * self.high.to(device), positions * self.low.to(device)
        pair = [
            torch.sin(large) * torch.cos(small) + torch.cos(large) * torch.sin(small),
            torch.cos(large) * torch.cos(small) - torch.sin(large) * torch.sin(small),
        ]
        interleaved = self.sizes["layout"] == "interleaved"
        table = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
        return inputs + table.to(inputs.dtype).to(inputs.device)


class LearnedPositions(nn.Module):
    """Add to each input a learned vector for its position.

    outputs[t] = inputs[t] + P[t + offset]

    Shapes: inputs (batch, steps, features), as is the result.
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
        super().__init__()
        self.sizes = check_options(self.specification, num_positions=num_positions, features=features)
        self.P = drawn((num_positions, features), features, dtype, device)

    def forward(self, inputs: torch.Tensor, *, offset: int = 0) -> torch.Tensor:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, self.P.dtype, inputs=inputs)
        end = offset + inputs.shape[-2]
        check_length(operator.title, end, self.sizes["num_positions"])
        return inputs + self.P[offset:end]


def position_permutation(features: int, *, device: torch.device | str | None = None) -> torch.Tensor:
    """The order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]

    Shapes: the result (features,), int32.
    """
    check_options(POSITION_PERMUTATION, features=features)
    return torch.arange(features, dtype=torch.int32, device=device).reshape(-1, 2).T.reshape(-1)
