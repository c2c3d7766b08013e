"""Attention to segments in every backend: identities with one call over all steps, and with MultiHeadAttention."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_core.draws import uniform

SIZES = {"query_size": 8, "num_heads": 2, "hidden_size": 6}
ENDS = (0, 3, 4, 9, 12)
"""Where segments begin and end: of 3, 1, 5 and 3 steps."""


def made(backend: SimpleNamespace, name: str, seed: int = 0, **zeros: float) -> Any:
    """A layer in float64, with drawn parameters, of which some are multiplied by a factor."""
    layer = backend.runtime.build(getattr(backend.package, name), SIZES, "float64")
    shapes = {key: array.shape for key, array in backend.package.get_parameters(layer).items()}
    drawn = {key: zeros.get(key, 1.0) * uniform(key, shape, 1.0, seed) for key, shape in shapes.items()}
    backend.package.set_parameters(layer, drawn)
    return layer


def close(backend: SimpleNamespace, actual: Any, expected: Any):
    np.testing.assert_allclose(*map(backend.runtime.to_numpy, (actual, expected)), rtol=1e-12, atol=1e-14)


def steps(backend: SimpleNamespace, first: int = 0, last: int = 12) -> Any:
    return backend.runtime.from_numpy(uniform("steps", (2, 12, 8), 1.0, 0)[:, first:last].copy())


def test_segments_one_by_one_give_what_one_call_gives(backend: SimpleNamespace):
    layer = made(backend, "SegmentAttention")
    context, weights = layer(steps(backend), per_head=True)
    for first, last in pairwise(ENDS):
        previous = steps(backend, 0, first) if first else None
        part, of_part = layer(steps(backend, first, last), previous, per_head=True)
        close(backend, part, context[:, first:last])
        close(backend, of_part, weights[:, :, first:last, :last])


def test_a_stack_of_layers_each_with_its_memory_gives_what_one_call_gives(backend: SimpleNamespace):
    lower, upper = (made(backend, "SegmentAttention", seed) for seed in (1, 2))
    whole, _ = upper(lower(steps(backend))[0])
    memories: list[list[np.ndarray]] = [[], []]
    for first, last in pairwise(ENDS):
        outputs = steps(backend, first, last)
        for layer, memory in zip((lower, upper), memories, strict=True):
            previous = backend.runtime.from_numpy(np.concatenate(memory, axis=1)) if memory else None
            memory.append(backend.runtime.to_numpy(outputs))
            outputs, _ = layer(outputs, previous)
        close(backend, outputs, whole[:, first:last])


def test_a_memory_that_is_hidden_at_its_front_gives_what_a_shorter_one_gives(backend: SimpleNamespace):
    layer, mask = made(backend, "SegmentAttention"), np.arange(12) >= 5
    shown = backend.runtime.from_numpy(np.repeat(mask[None, None], 2, axis=0))
    context, weights = layer(steps(backend, 9), steps(backend, 0, 9), shown)
    expected, of_expected = layer(steps(backend, 9), steps(backend, 5, 9))
    close(backend, context, expected)
    close(backend, weights[..., 5:], of_expected)


@pytest.mark.parametrize("first", [0, 4])
def test_without_distances_it_is_causal_multi_head_attention(backend: SimpleNamespace, first: int):
    layer, heads = made(backend, "SegmentAttention", W_r=0.0, u=0.0, v=0.0), made(backend, "MultiHeadAttention")
    mask = backend.package.causal_mask(12 - first, 12, offset=first)
    expected = heads(steps(backend, first), steps(backend), steps(backend), None, mask)
    actual = layer(steps(backend, first), steps(backend, 0, first) if first else None)
    for one, other in zip(actual, expected, strict=True):
        close(backend, one, other)


def test_it_depends_on_distances_alone(backend: SimpleNamespace):
    """With the same vector in every step, a step's scores are those of the step before, with one more distance."""
    layer = made(backend, "SegmentAttention")
    alike = np.repeat(uniform("alike", (1, 1, 8), 1.0, 0), 6, axis=1)
    weights = backend.runtime.to_numpy(layer(*map(backend.runtime.from_numpy, (alike, alike)), per_head=True)[1])
    for step in range(5):
        earlier, later = weights[0, :, step, : 7 + step], weights[0, :, step + 1, 1 : 8 + step]
        np.testing.assert_allclose(earlier / earlier[:, -1:], later / later[:, -1:], rtol=1e-12)
    assert np.ptp(weights[0, :, 0, :7], axis=-1).min() > 1e-3
