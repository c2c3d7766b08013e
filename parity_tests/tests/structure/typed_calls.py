"""What a type checker sees of a call, in every backend: `tox run -e types` checks this file, and nothing runs it.

mypy takes every array for Any; a call has its named arguments and a tuple all the same, and a decoder its own state.
"""

from __future__ import annotations

from typing import Any, assert_type

from backends import jax, mxnet, tf, torch

Answer = tuple[Any, Any | Any]


def in_torch(array: Any, memory: torch.Memory) -> None:
    layer, decoder = torch.AdditiveAttention(2, 3, 4), torch.LuongDecoder(5, 6, 7)
    assert_type(layer(array, array, array, mask=array), Answer)
    assert_type(layer.attend(array, memory, need_weights=False), Answer)
    layer(array, array, array, masks=array)  # type: ignore[call-arg]
    assert_type(decoder.start(memory), torch.LuongState)
    assert_type(decoder(array, array), tuple[Any, torch.LuongState, Any])


def in_tf(array: Any, memory: tf.Memory) -> None:
    layer, decoder = tf.AdditiveAttention(2, 3, 4), tf.LuongDecoder(5, 6, 7)
    assert_type(layer(array, array, array, mask=array), Answer)
    assert_type(layer.attend(array, memory, need_weights=False), Answer)
    layer(array, array, array, masks=array)  # type: ignore[call-arg]
    assert_type(decoder.start(memory), tf.LuongState)
    assert_type(decoder(array, array), tuple[Any, tf.LuongState, Any])


def in_jax(array: Any, memory: jax.Memory, rngs: Any) -> None:
    layer, decoder = jax.AdditiveAttention(2, 3, 4, rngs=rngs), jax.LuongDecoder(5, 6, 7, rngs=rngs)
    assert_type(layer(array, array, array, mask=array), Answer)
    assert_type(layer.attend(array, memory, need_weights=False), Answer)
    layer(array, array, array, masks=array)  # type: ignore[call-arg]
    assert_type(decoder.start(memory), jax.LuongState)
    assert_type(decoder(array, array), tuple[Any, jax.LuongState, Any])


def in_mxnet(array: Any, memory: mxnet.Memory) -> None:
    layer, decoder = mxnet.AdditiveAttention(2, 3, 4), mxnet.LuongDecoder(5, 6, 7)
    assert_type(layer(array, array, array, mask=array), Answer)
    assert_type(layer.attend(array, memory, need_weights=False), Answer)
    layer(array, array, array, masks=array)  # type: ignore[call-arg]
    assert_type(decoder.start(memory), mxnet.LuongState)
    assert_type(decoder(array, array), tuple[Any, mxnet.LuongState, Any])
