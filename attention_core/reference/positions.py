"""Positions of vectors in a sequence in NumPy."""

from __future__ import annotations

import numpy as np

from attention_core.operators.positions import LEARNED_POSITIONS, POSITION_PERMUTATION, SINUSOIDAL_POSITIONS
from attention_core.reference.arrays import Specified, align, check, promote
from attention_core.sinusoids import rates
from attention_core.specification import Layer

__all__ = ["SinusoidalPositions", "LearnedPositions", "position_permutation"]


class SinusoidalPositions(Specified):
    """Add the sines and cosines of its position to each input; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(...)

    Arguments: features is the features of an input, an even number; layout is whether sines and cosines alternate
    ("interleaved", as in the paper), or all sines come first ("concatenated"): P[p, i] = sin(p/10000^(2i/features)),
    P[p, features/2 + i] = cos(...). position_permutation returns the order that turns the one into the other.
    Raises: OptionError if features is not even or layout is not one of the two.
    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762.
    """

    specification: Layer = SINUSOIDAL_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved") -> None:
        super().__init__(features=features, layout=layout)

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
        """Add the positions, starting at offset.

        outputs[t] = inputs[t] + P[t + offset]

        Shapes: inputs (batch, steps, features), as is the result.
        Raises: ShapeError, DtypeError; OptionError if offset is negative.
        """
        self._check("call", offset=offset, inputs=inputs)
        high, low = rates(self.sizes["features"])
        positions = (np.arange(inputs.shape[-2]) + float(offset))[:, None]
        sine, cosine = np.sin(positions * high), np.cos(positions * high)
        small_sine, small_cosine = np.sin(positions * low), np.cos(positions * low)
        pair = [sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine]
        table = np.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return promote(inputs) + table.reshape(inputs.shape[-2:])


class LearnedPositions(Specified):
    """Add a learned vector for its position to each input.

    outputs[t] = inputs[t] + P[t + offset]

    Arguments: num_positions is the number of positions, features the features of an input.
    Parameters: P (num_positions, features).
    Raises: OptionError if a size is not positive.
    Source: Gehring et al. 2017, section 3.1, arXiv:1705.03122.
    """

    specification: Layer = LEARNED_POSITIONS

    def __init__(self, num_positions: int, features: int) -> None:
        super().__init__(num_positions=num_positions, features=features)

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
        """Add the positions, starting at offset.

        outputs[t] = inputs[t] + P[t + offset]

        Shapes: inputs (batch, steps, features), as is the result.
        Raises: ShapeError if a step is beyond the last position; DtypeError; OptionError if offset is negative.
        """
        self._check("call", offset=offset, inputs=inputs)
        end = offset + inputs.shape[-2]
        rows = self.parameters["P"][..., offset:end, :]
        return promote(inputs) + align(rows, 2, inputs.ndim)


def position_permutation(features: int) -> np.ndarray:
    """Return the order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]

    Shapes: the result (features,), int32.
    Raises: OptionError if features is not an even number.
    Source: this specification.
    """
    check(POSITION_PERMUTATION, features=features)
    return np.arange(features, dtype=np.int32).reshape(-1, 2).T.reshape(-1)
