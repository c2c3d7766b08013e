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
    total, width = sum(array.size for array in arrays.values()), STACK if stacked else 1
    entries = np.zeros(total)  # of all arrays, one after another
    for start in range(0, total, width):
        rows = min(width, total - start)
        perturbed = _perturb(arrays, start, rows)
        outputs = function(perturbed if stacked else {name: stack[0] for name, stack in perturbed.items()})
        entries[start : start + rows] = sum(
            _contract(outputs[int(position)], cotangent, stacked) for position, cotangent in cotangents.items()
        )
    result = {}
    for name, array in arrays.items():
        result[name], entries = entries[: array.size].reshape(array.shape), entries[array.size :]
    return result


def _perturb(arrays: Arrays, start: int, rows: int) -> dict[str, np.ndarray]:
    """Each array `rows` times; entry `start` of all arrays is perturbed in the first row, and the next in the next."""
    stacks, end = {}, start + rows
    for name, array in arrays.items():
        stacks[name] = np.broadcast_to(array, (rows, *array.shape))
        if start < array.size and end > 0:
            entries = np.arange(max(start, 0), min(end, array.size))
            stacks[name] = np.array(stacks[name], order="C")
            stacks[name].reshape(rows, -1)[entries - start, entries] += 1j * STEP
        start, end = start - array.size, end - array.size
    return stacks


def _contract(output: np.ndarray, cotangent: np.ndarray, stacked: bool) -> np.ndarray:
    imaginary = output.imag / STEP * cotangent
    return imaginary.reshape(imaginary.shape[0] if stacked else 1, -1).sum(axis=-1)
