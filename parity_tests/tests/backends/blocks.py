"""How the tests of all frameworks reach what a backend computes in blocks: NumPy arrays in and out, on a path."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import backends

Arrays = Mapping[str, np.ndarray]
Ways = Mapping[str, Mapping[str, Any]]
"""Constants to replace below blocked/, "module.NAME" and the value, for each way in which a backend goes."""


def blocked(backend: SimpleNamespace, name: str) -> ModuleType:
    """A module of what the backend computes in blocks."""
    return importlib.import_module(f"backends.{backend.name}.blocked.{name}")


def kernels_of(backend: SimpleNamespace) -> ModuleType:
    """The module by which the backend chooses between formula and kernel."""
    return importlib.import_module(f"backends.{backend.name}.kernels")


@contextmanager
def on_path(backend: SimpleNamespace, path: str | None) -> Iterator[None]:
    """Have the backend go the plain path or the blocked one, whatever the sizes; or by sizes: None."""
    kernels = kernels_of(backend)
    before = kernels.forced
    kernels.set_path(path)
    try:
        yield
    finally:
        kernels.set_path(before)


@contextmanager
def in_small_blocks(backend: SimpleNamespace, sizes: Mapping[str, Any]) -> Iterator[None]:
    """Have the backend go the blocked path, with those constants."""
    with pytest.MonkeyPatch.context() as patch, on_path(backend, "blocked"):
        for name, size in sizes.items():
            patch.setattr(f"backends.{backend.name}.blocked.{name}", size)
        yield


def plainly(backend: SimpleNamespace, kind: str, arrays: Arrays, cotangent: np.ndarray) -> list[np.ndarray]:
    """An additive "score", or the context of "dot" or "additive" scores, by the plain formula; and its gradients."""
    with on_path(backend, "plain"):
        return differentiated(backend, function_of(backend.name, kind, "plain"), arrays, cotangent)


def by_blocks(
    backend: SimpleNamespace,
    kind: str,
    ways: Mapping[str, Ways],
    arrays: Arrays,
    cotangent: np.ndarray,
    *,
    graph: bool = False,
) -> dict[str, list[np.ndarray]]:
    """The same in blocks, in each of the backend's ways; in TensorFlow, where requested, in a graph, too."""
    results = {}
    for way, sizes in ways[backend.name].items():
        function = function_of(backend.name, kind, way)
        with in_small_blocks(backend, sizes):
            results[way] = differentiated(backend, function, arrays, cotangent)
            if graph and backend.name == "tf":
                results["graph"] = differentiated(backend, function, arrays, cotangent, graph=True)
    return results


def assert_close(
    actual: Mapping[str, Sequence[np.ndarray]],
    expected: Sequence[np.ndarray],
    tolerance: float = 1e-14,
    size: float = 1.0,
    words: str = "",
):
    """See that all ways have the expected numbers, NaN included; the size is that of what cancels in them."""
    for way, arrays in actual.items():
        for one, other in zip(arrays, expected, strict=True):
            message = f"{way} {words}"
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * size, err_msg=message)


@functools.cache
def function_of(name: str, kind: str, way: str) -> Callable[..., tuple[Any]]:
    """One function for each way, as vjp takes it: JAX keeps what it compiled for a function."""
    package = backends.load(name)

    def compute(
        _: None, queries: Any, keys: Any, values: Any = None, mask: Any = None, w_v: Any = None, bias: Any = None
    ) -> tuple[Any]:
        softcap = 0.25 if kind == "bounded" else None
        if kind in ("dot", "bounded") and way != "plain":
            return (package.blocked.blocked_dot_attention(queries, keys, values, mask, 0.5, softcap, bias),)
        if kind == "additive" and way != "plain":
            return (package.blocked.blocked_additive_attention(queries, keys, values, mask, w_v),)
        if kind in ("dot", "bounded"):
            scores = package.scaled_dot_score(queries, keys, scale=0.5, softcap=softcap)
            scores = scores if bias is None else scores + bias
        else:
            scores = package.additive_score(queries, keys, w_v)
        return (scores if kind == "score" else package.attention_pooling(scores, values, mask=mask)[0],)

    return compute


def differentiated(
    backend: SimpleNamespace,
    function: Callable[..., tuple[Any]],
    arrays: Arrays,
    cotangent: np.ndarray,
    *,
    graph: bool = False,
) -> list[np.ndarray]:
    """The output of function(None, **arrays), and the gradients of the floating arrays."""
    tensors = [backend.runtime.from_numpy(array) for array in (cotangent, *arrays.values())]
    compute = with_gradients(backend.runtime, function, *arrays)
    if graph:
        compute = in_graph(compute, tensors)
    return [backend.runtime.to_numpy(array) for array in compute(*tensors)]


@functools.cache
def with_gradients(runtime: ModuleType, function: Callable[..., tuple[Any]], *names: str) -> Callable[..., Any]:
    """A function of a cotangent and the named tensors."""

    def both(cotangent: Any, *tensors: Any) -> tuple[Any, ...]:
        outputs, gradients, _ = runtime.vjp(function, dict(zip(names, tensors, strict=True)), {0: cotangent})
        return *outputs, *gradients.values()

    return both


def in_graph(function: Callable[..., Any], tensors: Iterable[Any]) -> Callable[..., Any]:
    """A function of TensorFlow as a graph for tensors of those types and ranks, and of any size."""
    return traced(function, *((tensor.shape.rank, tensor.dtype) for tensor in tensors))


@functools.cache
def traced(function: Callable[..., Any], *tensors: tuple[int, Any]) -> Callable[..., Any]:
    """The graph, which is one for all calls."""
    import tensorflow as tf

    return tf.function(function, input_signature=[tf.TensorSpec([None] * rank, dtype) for rank, dtype in tensors])
