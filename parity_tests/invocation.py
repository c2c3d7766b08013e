"""How a case is called: the same for the reference and for every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attention_core.operators import find
from attention_core.specification import Layer, Operator

Function = Callable[..., tuple[Any, ...]]


def bind(package: Any, operator: str, method: str, options: Mapping[str, Any]) -> Function:
    """A function (layer, **arrays) -> tuple of outputs that makes the call; layer is None for a function.

    A method that reads a memory gets it from `prepare`. "translate" runs an encoder and a decoder.
    """
    if not method:
        chosen = getattr(package, operator)
        return lambda layer, **arrays: _as_tuple(chosen(**options, **arrays))
    if method == "translate":
        return lambda layers, **arrays: translate(layers[0], layers[1], options, **arrays)
    if method == "call":
        return lambda layer, **arrays: _as_tuple(layer(**arrays))
    specification = find(operator)
    assert isinstance(specification, Layer)
    tensors = specification.method(method).inputs
    if not any(tensor.name.startswith("memory.") for tensor in tensors):
        return lambda layer, **arrays: _as_tuple(getattr(layer, method)(**arrays, **options))
    prepared = {tensor.name for tensor in specification.method("prepare").inputs}

    def prepare_first(layer: Any, **arrays: Any) -> tuple[Any, ...]:
        memory = layer.prepare(**{name: array for name, array in arrays.items() if name in prepared})
        rest = {name: array for name, array in arrays.items() if name not in prepared}
        return _as_tuple(getattr(layer, method)(**rest, memory=memory, **options))

    return prepare_first


def translate(
    encoder: Any, decoder: Any, options: Mapping[str, Any], tokens: Any, valid_lens: Any, targets: Any
) -> tuple[Any, ...]:
    """Sentences through encoder and decoder: logits of given translations, and those found greedily."""
    outputs, state = encoder(tokens, valid_lens)
    logits, _, _ = decoder(targets, outputs, state, valid_lens)
    found, lengths, weights = decoder.greedy(outputs, state, valid_lens, **options)
    return outputs, logits, found, lengths, weights


def output_names(operator: str, method: str) -> tuple[str, ...]:
    """The names of what a call returns, in order."""
    if method == "translate":
        return ("encoder_outputs", "logits", "tokens", "lengths", "weights")
    specification = find(operator)
    called: Operator = specification.method(method) if isinstance(specification, Layer) else specification
    return tuple(tensor.name for tensor in called.outputs)


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
