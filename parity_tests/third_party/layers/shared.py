"""What the modules of layers share: a backend's layers as a target, stacks of single layers, and names in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from attention_core.operators import LAYERS
from attention_core.specification import Layer

RECURRENT = ("valid_lens", "state", "hidden_size", "num_layers", "bidirectional")
"""What recurrent layers and encoders take beside inputs or tokens; some take no valid_lens."""
WITHOUT_LENGTHS = RECURRENT[1:]

Load = Callable[[Any, Mapping[str, Any]], Any]
"""Sets the arrays of a layer by the names of its framework, and returns the layer."""


def backend_layers(package: Any, runtime: Any, load: Load, dtype_of: Callable[[Any], str]) -> SimpleNamespace:
    """A target whose layers are a backend's, loaded as users of its framework load a file."""

    def as_function(layer: Layer) -> Callable[..., Any]:
        options = {option.name for option in layer.options}

        def call(parameters: Mapping[str, Any], **arguments: Any) -> Any:
            config = {name: value for name, value in arguments.items() if name in options}
            rest = {name: value for name, value in arguments.items() if name not in options}
            dtype = dtype_of(next(iter(parameters.values())))
            return load(runtime.build(getattr(package, layer.name), config, dtype), parameters)(**rest)

        return call

    return SimpleNamespace(**{layer.name: as_function(layer) for layer in LAYERS})


def run_stack(
    run: Callable[[dict[str, Any], Any, Any], tuple[Any, Any]],
    parameters: Mapping[str, Any],
    inputs: Any,
    state: Any,
    join: Callable[[list[Any]], Any],
) -> tuple[Any, Any]:
    """Outputs and states of layers that were made one by one, whose numbers precede the names, as in "0/kernel"."""
    states = []
    for layer in sorted({int(name.partition("/")[0]) for name in parameters}):
        start = f"{layer}/"
        arrays = {name.removeprefix(start): array for name, array in parameters.items() if name.startswith(start)}
        inputs, last = run(arrays, inputs, None if state is None else state[layer : layer + 1])
        states.append(last)
    return inputs, join(states)


def part_of(parameters: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The arrays of a part, by their names in it."""
    return {
        path.rpartition(f"{name}.")[2]: array for path, array in parameters.items() if f".{path}".count(f".{name}.")
    }


def matching(name: str, known: Mapping[str, Any]) -> str:
    """The longest of the known names that this one ends with, after any prefix."""
    ends = [end for end in known if f".{name}".replace("/", ".").endswith(f".{end}".replace("/", "."))]
    if not ends:
        raise ValueError(f"the layer has {', '.join(known)}, not {name}")
    return max(ends, key=len)
