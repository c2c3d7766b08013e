"""Our own layers, with the arrays of their framework's own file: what the four modules beside share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from attention_core.operators import LAYERS
from attention_core.specification import Layer

Load = Callable[[Any, Mapping[str, Any]], Any]
"""Sets the arrays of a layer by the names of its framework, and returns the layer."""


def own_layers(package: Any, runtime: Any, load: Load, dtype_of: Callable[[Any], str]) -> SimpleNamespace:
    """A target whose layers are those of one of our backends, loaded as the framework's users load a file."""

    def called(layer: Layer) -> Callable[..., Any]:
        names = {option.name for option in layer.options}

        def call(parameters: Mapping[str, Any], **given: Any) -> Any:
            config = {name: value for name, value in given.items() if name in names}
            rest = {name: value for name, value in given.items() if name not in names}
            dtype = dtype_of(next(iter(parameters.values())))
            return load(runtime.build(getattr(package, layer.name), config, dtype), parameters)(**rest)

        return call

    return SimpleNamespace(**{layer.name: called(layer) for layer in LAYERS})


def longest(name: str, known: Mapping[str, Any]) -> str:
    """The longest of the known names that this one ends with, whatever stands before it."""
    ends = [own for own in known if f".{name}".replace("/", ".").endswith(f".{own}".replace("/", "."))]
    if not ends:
        raise ValueError(f"the layer has {', '.join(known)}, and is given {name}")
    return max(ends, key=len)
