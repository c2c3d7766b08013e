"""Gradients of the reference by complex step, exact to rounding.

For f analytic and h tiny, Im f(x + ih) / h = f'(x) with no subtraction, so no digit is lost (Squire and Trapp 1998,
doi:10.1137/S003614459631241X). With h = 2⁻³⁰⁰ the neglected terms are below any float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

STEP = 2.0**-300
STACK = 256

Arrays = Mapping[str, np.ndarray]


def gradients(
    function: Callable[[Arrays], tuple[np.ndarray, ...]], arrays: Arrays, cotangents: Arrays, *, stacked: bool
) -> dict[str, np.ndarray]:
    """Compute the gradient of sum over outputs of (cotangent · output), for every array.

    gradient[k] = sum over o of cotangent[o] Im function(x + i h e_k)[o] / h

    function takes the floating arrays by name and returns a tuple; cotangents are keyed by the output's position as
    text. With stacked, many perturbations share one pass along a leading axis, which every array then has.
    """
    arrays = {name: array.astype(np.complex128) for name, array in arrays.items()}
    result = {name: np.zeros(array.shape) for name, array in arrays.items()}
    for name, array in arrays.items():
        size = array.size
        for start in range(0, size, STACK if stacked else 1):
            entries = np.arange(start, min(start + STACK, size) if stacked else start + 1)
            perturbed = np.repeat(array.reshape(1, size), len(entries), axis=0)
            perturbed[np.arange(len(entries)), entries] += 1j * STEP
            if stacked:
                arguments = {k: np.broadcast_to(v, (len(entries), *v.shape)) for k, v in arrays.items()}
                arguments[name] = perturbed.reshape(len(entries), *array.shape)
            else:
                arguments = {**arrays, name: perturbed.reshape(array.shape)}
            outputs = function(arguments)
            result[name].flat[entries] = sum(
                _contract(outputs[int(position)], cotangent, stacked) for position, cotangent in cotangents.items()
            )
    return result


def _contract(output: np.ndarray, cotangent: np.ndarray, stacked: bool) -> np.ndarray:
    imaginary = output.imag / STEP * cotangent
    return imaginary.reshape(imaginary.shape[0] if stacked else 1, -1).sum(axis=-1)
