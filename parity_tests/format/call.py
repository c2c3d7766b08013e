"""The call of a case, the same for the reference and for every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from attention_core.operators import ENTRIES, LAYERS, find
from attention_core.specification import Layer, Operator, Tensor

Function = Callable[..., tuple[Any, ...]]


def bind(package: Any, operator: str, method: str, options: Mapping[str, Any]) -> Function:
    """Return the call as a function (layer, **arrays) -> tuple of outputs; layer is None if the operator is a function.

    A method that reads a memory gets it from `prepare`, and a decoder's step its state from `start`, and from the steps
    of the tokens before it, if there are any. With the method `extend`, the memory is extended by the arrays named
    steps.*, in one call or in PIECES, and then attended to; with `pruned`, the layer is that of `layer_called`. Arrays
    named losses.* become a function of a head mask. An optimiser runs in the package's `training.descend`.
    """
    if operator in OPTIMISERS:
        recipe = getattr(package, operator)(**options)
        return lambda layer, **arrays: as_tuple(package.training.descend(recipe, **with_losses(arrays)))
    if not method:
        chosen = getattr(package, operator)
        return lambda layer, **arrays: needed_outputs(chosen(**options, **with_losses(arrays)))
    pieces = options.get(PIECES, 1)
    options = {name: value for name, value in options.items() if name not in (HEADS, PIECES)}
    if read_by(method) == "call":
        return lambda layer, **arrays: needed_outputs(layer(**arrays, **options))
    specification = find(operator)
    assert isinstance(specification, Layer)
    tensors = specification.method(method).inputs
    if not any(tensor.name.startswith("memory.") for tensor in tensors):
        return lambda layer, **arrays: needed_outputs(getattr(layer, method)(**arrays, **options))
    prepared = {tensor.name for tensor in specification.method("prepare").inputs}
    start = first_of(specification, method)
    of_start = {} if start is None else {option.name: options[option.name] for option in start.options}
    of_call = {name: value for name, value in options.items() if name not in of_start}

    def prepare_first(layer: Any, **arrays: Any) -> tuple[Any, ...]:
        memory = layer.prepare(**{name: array for name, array in arrays.items() if name in prepared})
        rest = {name: array for name, array in arrays.items() if name not in prepared}
        if start is not None:
            given = [rest.pop("state", None)] if any(tensor.name == "state" for tensor in start.inputs) else []
            rest["state"] = layer.start(memory, *given, **of_start)
            earlier = rest.pop(EARLIER, None)
            for step in range(0 if earlier is None else earlier.shape[1]):
                _, rest["state"], _ = layer.step(earlier[:, step], rest["state"], memory)
        if method == "extend":
            steps = {name.removeprefix(STEPS): rest.pop(name) for name in (*rest,) if name.startswith(STEPS)}
            for piece in divide(steps, pieces):
                memory = layer.extend(memory, **piece)
        return needed_outputs(getattr(layer, read_by(method))(**rest, memory=memory, **of_call))

    return prepare_first


EARLIER = "earlier.tokens"
"""The tokens that a decoder's step comes after, (batch, steps), from the start."""


def first_of(layer: Layer, method: str) -> Operator | None:
    """The method that makes the state of a decoder's first step, for a case of a step."""
    return next((other for other in layer.methods if method == "step" and other.name == f"{layer.name}.start"), None)


STEPS = "steps."
"""Prefix of the names of the arrays that extend a memory."""
PIECES = "pieces"
"""The option of a case that extends a memory in several calls, each by as many steps."""


def divide(steps: Mapping[str, Any], pieces: int) -> Iterator[Mapping[str, Any]]:
    """Divide steps without a mask among several calls: their keys and values, and their position, if any."""
    if pieces == 1:
        yield steps
        return
    size = steps["keys"].shape[-2] // pieces
    for start in range(0, size * pieces, size):
        parts = {name: steps[name][..., start : start + size, :] for name in ("keys", "values")}
        yield {**parts, **({"position": steps["position"] + start} if "position" in steps else {})}


HEADS = "heads"
"""The option of a case that prunes a layer; the other options are those of the call."""


def layer_called(layer: Any, method: str, options: Mapping[str, Any]) -> Any:
    """The layer that a case calls, whose gradients it has: with the method `pruned`, the smaller one."""
    return layer.pruned(options[HEADS]) if method == "pruned" else layer


READ_BY = {"extend": "attend", "pruned": "call"}
"""The methods that return a memory or a layer, and the method of it that a case calls then."""


def read_by(method: str) -> str:
    """The method whose outputs a case has: that of the memory or layer, where the method returns one."""
    return READ_BY.get(method, method)


SECOND = "second."
"""Prefix of the names of a second call's arrays and outputs."""


def wrap_call(function: Function, shared: Mapping[str, str], twice: bool) -> Function:
    """Wrap the call: shared arguments are the same array as another one, by name; with twice, call it two times.

    Both calls precede any differentiation. The second takes the arrays named second.*, and otherwise those of the
    first.
    """
    if not shared and not twice:
        return function

    def once(layer: Any, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
        return function(layer, **arrays, **{name: arrays[other] for name, other in shared.items()})

    def call(layer: Any, **arrays: Any) -> tuple[Any, ...]:
        if not twice:
            return once(layer, arrays)
        first = {name: array for name, array in arrays.items() if not name.startswith(SECOND)}
        other = {name.removeprefix(SECOND): arrays[name] for name in arrays if name.startswith(SECOND)}
        return (*once(layer, first), *once(layer, {**first, **other}))

    return call


class SquaredErrors(NamedTuple):
    """Squared errors of outputs that are sums over heads, from the arrays of a case.

    losses[b] = sum over o of weights[o] (sum over h of head_mask[b, h] heads[h, o] - targets[b, o])²
    """

    heads: Any
    targets: Any
    weights: Any

    def __call__(self, head_mask: Any) -> Any:
        """Return the loss of each example."""
        return ((head_mask @ self.heads - self.targets) ** 2 @ self.weights[:, None])[:, 0]


LISTED = ("W", "b", "v")
"""The names of the arrays in an argument or output that is a list: gradients.W, gradients.b and gradients.v."""
LISTS = ("parameters", "gradients")
"""The arguments that are lists."""
OPTIMISERS = tuple(entry.name for entry in ENTRIES if isinstance(entry, Operator) and not entry.outputs)
"""The optimisers, which have no outputs; a case gives a list of parameters, and a list of gradients with steps as their
first axis."""


def with_losses(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Combine the arrays named losses.* to a function of a head mask, and those of each name in LISTS to a list."""
    arguments: dict[str, Any] = {}
    for name, array in arrays.items():
        whole, _, part = name.partition(".")
        if whole in LISTS:
            arguments.setdefault(whole, []).append(array)
        elif whole == "losses":
            arguments.setdefault(whole, {})[part] = array
        else:
            arguments[name] = array
    return arguments | ({"losses": SquaredErrors(**arguments["losses"])} if "losses" in arguments else {})


TRAINING = "training"
"""The operator of cases that train a translator; their method is "train"."""
JUDGED_STEPS = 50
"""Number of steps that float32 is judged by: rounding grows with steps. Later steps are separate quantities."""


def train(
    package: Any,
    model: Any,
    options: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    given: Callable[[np.ndarray], Any] = lambda array: array,
    taken: Callable[[Any], np.ndarray] = np.asarray,
) -> dict[str, np.ndarray]:
    """Train a translator on each step's rows; return loss and norm of every step, and the trained parameters.

    given converts an array to the framework's, and taken converts it back.
    """
    numbers = {name: value for name, value in options.items() if name not in ("optimizer", "max_norm")}
    optimizer = getattr(package, options["optimizer"])(**numbers)
    trainer = package.Trainer(model, optimizer, max_norm=options["max_norm"])
    history = []
    for step, rows in enumerate(arrays["batches"]):
        pairs = {name: given(arrays[name][rows]) for name in package.training.Batch._fields if name in arrays}
        masks = {name: given(array[step]) for name, array in arrays.items() if name.endswith("dropout_mask")}
        batch = package.training.Batch(**pairs, masks=masks)
        history.append([taken(number) for number in trainer.step(batch)])
    losses, norms = (np.stack(column) for column in zip(*history, strict=True))
    outputs = {"losses": losses[:JUDGED_STEPS], "norms": norms[:JUDGED_STEPS]}
    if len(losses) > JUDGED_STEPS:
        outputs |= {"later_losses": losses[JUDGED_STEPS:], "later_norms": norms[JUDGED_STEPS:]}
    outputs["evaluated"] = taken(trainer.evaluate(batch))
    return outputs | {f"trained_{name}": array for name, array in package.get_parameters(model).items()}


def layer_of(operator: str, config: Mapping[str, Any]) -> str:
    """The class that a case calls; a training has the layer with those options."""
    if operator != TRAINING:
        return operator
    return next(layer.name for layer in LAYERS if {*config} <= {option.name for option in layer.options})


def output_names(operator: str, method: str, options: Mapping[str, Any], twice: bool = False) -> tuple[str, ...]:
    """The names of a call's outputs, in order, without weights that are not needed."""
    if twice:
        names = output_names(operator, method, options)
        return (*names, *(SECOND + name for name in names))
    if operator in OPTIMISERS:
        return tuple(f"parameters.{name}" for name in LISTED)
    specification = find(operator)
    called: Operator = specification.method(read_by(method)) if isinstance(specification, Layer) else specification
    names = tuple(name for tensor in called.outputs for name in names_of(tensor))
    return names if options.get("need_weights", True) else names[: names.index("weights")]


def names_of(tensor: Tensor) -> tuple[str, ...]:
    """The name of an output, or those of the arrays in it where it is a list."""
    return tuple(f"{tensor.name}.{part}" for part in LISTED) if tensor.axes == ("any",) else (tensor.name,)


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    """Flatten the outputs, named tuples included."""
    if not isinstance(outputs, (tuple, list)):
        return (outputs,)
    return tuple(flat for output in outputs for flat in as_tuple(output))


def needed_outputs(outputs: Any) -> tuple[Any, ...]:
    """Flatten the outputs, without None at the end: weights that are not needed."""
    flat = as_tuple(outputs)
    return needed_outputs(flat[:-1]) if flat and flat[-1] is None else flat
