"""Keras's own attention, on JAX, as targets: three calls, in what may depend on Keras's backend."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras

from backends.jax import runtime
from parity_tests.third_party.keras_heads import multi_head_context, ops_dot_product, shared_heads


def describe() -> dict[str, Any]:
    """What the runtime describes, and the version of Keras."""
    described = runtime.describe()
    return {**described, "versions": {**described["versions"], "keras": keras.__version__}}


with_keras = SimpleNamespace(**{**vars(runtime), "describe": describe})

multi_head_attention = SimpleNamespace(runtime=with_keras, MultiHeadAttention=multi_head_context)
group_query_attention = SimpleNamespace(runtime=with_keras, MultiHeadAttention=shared_heads)
ops_dot_product_attention = SimpleNamespace(runtime=with_keras, DotProductAttention=ops_dot_product)
