"""How a case is called: the same for the reference and for every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attention_core.operators import find
from attention_core.specification import Layer, Operator

Function = Callable[..., tuple[Any, ...]]


def bind(package: Any, operator: str, method: str, options: Mapping[str, Any]) -> Function:
    """A function (layer, **arrays) -> tuple of outputs that makes the call; layer is None for a function.

    A method that reads a memory gets it from `prepare`, and a decoder's step its state from `start`. Arrays named
    losses.* become a function of a head mask. "translate" runs an encoder and a decoder.
    """
    if not method:
        chosen = getattr(package, operator)
        return lambda layer, **arrays: _as_tuple(chosen(**options, **_with_losses(arrays)))
    if method == "translate":
        return lambda layers, **arrays: translate(layers, options, **arrays)
    if method == "call":
        return lambda layer, **arrays: _as_tuple(layer(**arrays, **options))
    specification = find(operator)
    assert isinstance(specification, Layer)
    tensors = specification.method(method).inputs
    if not any(tensor.name.startswith("memory.") for tensor in tensors):
        return lambda layer, **arrays: _as_tuple(getattr(layer, method)(**arrays, **options))
    prepared = {tensor.name for tensor in specification.method("prepare").inputs}
    started = method == "step" and any(own.name == f"{operator}.start" for own in specification.methods)

    def prepare_first(layer: Any, **arrays: Any) -> tuple[Any, ...]:
        memory = layer.prepare(**{name: array for name, array in arrays.items() if name in prepared})
        rest = {name: array for name, array in arrays.items() if name not in prepared}
        if started:
            rest["state"] = layer.start(memory, rest.get("state"))
        return _as_tuple(getattr(layer, method)(**rest, memory=memory, **options))

    return prepare_first


class SquaredErrors(NamedTuple):
    """Losses of examples whose outputs the heads add up to, with the arrays that a case gives.

    losses[b] = sum over o of weights[o] (sum over h of head_mask[b, h] heads[h, o] - targets[b, o])²
    """

    heads: Any
    targets: Any
    weights: Any

    def __call__(self, head_mask: Any) -> Any:
        """Give the loss of each example."""
        return ((head_mask @ self.heads - self.targets) ** 2 @ self.weights[:, None])[:, 0]


def _with_losses(arrays: Mapping[str, Any]) -> dict[str, Any]:
    own = {name.removeprefix("losses."): array for name, array in arrays.items() if name.startswith("losses.")}
    rest = {name: array for name, array in arrays.items() if not name.startswith("losses.")}
    return {"losses": SquaredErrors(**own), **rest} if own else rest


def translate(
    layers: Sequence[Any], options: Mapping[str, Any], tokens: Any, valid_lens: Any, targets: Any
) -> tuple[Any, ...]:
    """Sentences through encoder and decoder, and the bridge between them if there is one.

    Gives the logits of given translations, and those found greedily.
    """
    outputs, state = layers[0](tokens, valid_lens)
    if len(layers) == 3:
        outputs, state = layers[2](outputs, state)
    decoder = layers[1]
    logits, _, _ = decoder(targets, outputs, state, valid_lens)
    found, lengths, weights = decoder.greedy(outputs, state, valid_lens, **options)
    return outputs, logits, found, lengths, weights


def parts_of(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The layers of a translation: the name of each, its class, and its constructor's arguments."""
    for part, given in ((part, config[part]) for part in ("encoder", "decoder", "bridge") if part in config):
        yield part, given["layer"], {name: value for name, value in given.items() if name != "layer"}


def output_names(operator: str, method: str) -> tuple[str, ...]:
    """The names of what a call returns, in order."""
    if method == "translate":
        return ("encoder_outputs", "logits", "tokens", "lengths", "weights")
    specification = find(operator)
    called: Operator = specification.method(method) if isinstance(specification, Layer) else specification
    return tuple(tensor.name for tensor in called.outputs)


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    """The outputs one after another, those of a named tuple in their place."""
    if not isinstance(outputs, (tuple, list)):
        return (outputs,)
    return tuple(flat for output in outputs for flat in _as_tuple(output))
