"""The layers of the backends, under each framework's names: read from the tables of backends.<framework>.parameters.

The names are the paths of attributes, which are those of torch's `state_dict`, of Gluon's `save_parameters` and of
`nnx.state`. Keras numbers a layer's variables in a .weights.h5 file: its second spelling.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import backends
from attention_core.operators import LAYERS
from attention_core.specification import Layer, Sizes, pattern
from backends import FRAMEWORKS
from backends.weights.configs import UnseenError, layer_named, whole_config
from backends.weights.errors import WeightError
from backends.weights.table import Source, plain

PREFIX = "attention_parity."
SOURCES = {
    f"{PREFIX}{framework}": Source(f"{PREFIX}{framework}", layer="", rows=(), framework=framework)
    for framework in FRAMEWORKS
}
NUMBER = re.escape("{layer}"), r"\d{1,4}"
PARTS = "|".join(sorted({re.escape(part).replace(*NUMBER) for layer in LAYERS for part in layer.parts}))
INSIDE = re.compile(rf"({PARTS})\.(.+)")
"""Matches the name of an array in a layer inside another one, such as "attention.W_q" or "layers.0.norm.g"."""

WORDS = frozenset(word for layer in LAYERS for parameter in layer.parameters for word in parameter.name.split(".")) | {
    "vars"
}
"""One of these is in the name of every array of a backend's layer."""

Axes = tuple[int, ...] | None

SAVED = {"mxnet": {"w": "w.value"}}
"""Paths that a framework's file writes in another way than the table: Gluon has no scalars, and stores (1,)."""


class Read(NamedTuple):
    """The arrays of one layer, with their original names, and the prefix of these."""

    layer: Layer
    config: dict[str, Any]
    arrays: dict[str, np.ndarray]
    used: dict[str, tuple[str, ...]]
    prefix: str


@cache
def tables(framework: str) -> Mapping[str, tuple[tuple[str, str, Axes], ...]]:
    """The tables of a backend: canonical name, path, axes of the one in the order of the other; by layer.

    Raises: WeightError if the backend cannot run here.
    """
    reason = backends.available()[framework].reason
    if reason is not None:
        raise WeightError(f"{PREFIX}{framework} needs its framework: {reason}")
    return importlib.import_module(f"backends.{framework}.parameters").TABLES


@cache
def _patterns(framework: str) -> tuple[tuple[re.Pattern[str], str, Axes], ...]:
    """Every path that a layer of this backend may have, as a pattern, with its canonical name."""
    entries = {(path, canonical, axes) for table in tables(framework).values() for canonical, path, axes in table}
    compiled = []
    for path, canonical, axes in sorted(entries, key=str):
        number = re.escape(SAVED.get(framework, {}).get(path, path)).replace(
            re.escape("{layer}"), r"(?P<layer>\d{1,4})"
        )
        compiled.append((re.compile(number), canonical, axes))
    return tuple(compiled)


def read(
    framework: str, arrays: Mapping[str, np.ndarray], layer: str | None, prefix: str | None, options: Mapping[str, Any]
) -> Read:
    """The canonical arrays of a backend's layer, which is the one of `layer`, or follows from names and shapes.

    Raises: WeightError if no layer has such arrays, or several do.
    """
    names = {plain(name): name for name in arrays}
    if prefix is not None:
        names = {name: original for name, original in names.items() if name.startswith(plain(prefix))}
    if framework == "tf":
        names = {IN_LISTS.sub(_layer_number, name): original for name, original in names.items()}
        names = {
            _from_h5(name, {other: arrays[original].ndim for other, original in names.items()}): original
            for name, original in names.items()
        }
    strange = [original for name, original in names.items() if WORDS.isdisjoint(name.split("."))]
    if strange:  # seen without importing the framework
        raise _foreign(framework, strange)
    refused: WeightError | None = None
    starts = _starts(list(names)) if prefix is None else [plain(prefix)]
    for start in starts:
        matched = {name: _canonical(framework, name.removeprefix(start)) for name in names}
        unknown = [names[name] for name, entry in matched.items() if entry is None]
        if unknown or not matched:
            continue
        entries = {entry[0]: (names[name], entry[1]) for name, entry in matched.items() if entry is not None}
        made = {canonical: _rearrange(canonical, arrays[name], axes) for canonical, (name, axes) in entries.items()}
        try:
            which, config = _layer(made, layer, options)
        except WeightError as error:
            refused = error if refused is None or isinstance(error, UnseenError) else refused
            continue
        expected = which.shapes(which.sizes(config))
        canonical_arrays = {name: np.array(made[name], order="C") for name in expected}
        return Read(which, config, canonical_arrays, {name: (entries[name][0],) for name in expected}, start)
    if refused is not None:
        raise type(refused)(f"{PREFIX}{framework}: {refused}")
    strange = [names[name] for name in names if _canonical(framework, name.removeprefix(starts[-1])) is None]
    raise _foreign(framework, strange)


def _rearrange(canonical: str, array: np.ndarray, axes: Axes) -> np.ndarray:
    """The array with the canonical axes; one that has another number of them is refused by its shape later."""
    if canonical.rpartition(".")[2] == "w" and array.shape == (1,):
        return array.reshape(())
    return array if axes is None or array.ndim != len(axes) else array.transpose(axes)


def _foreign(framework: str, names: list[str]) -> WeightError:
    return WeightError(
        f"{PREFIX}{framework}: {', '.join(names[:8]) or 'no array'} is of no layer of backends.{framework}. If other "
        "arrays do, pass prefix=... ."
    )


def _starts(names: list[str]) -> list[str]:
    """The possible common prefixes of all names: none, or any of the shared first words."""
    words = [name.split(".")[:-1] for name in names]
    shared = 0
    while words and all(len(each) > shared and each[shared] == words[0][shared] for each in words):
        shared += 1
    return ["".join(f"{word}." for word in words[0][:count]) for count in range(shared + 1)] if words else [""]


def _canonical(framework: str, path: str) -> tuple[str, Axes] | None:
    """The canonical name of a path, with the parts that it begins with."""
    for expression, canonical, axes in _patterns(framework):
        match = expression.fullmatch(path)
        if match:
            return canonical.format(**match.groupdict()), axes
    part = INSIDE.fullmatch(path)
    inner = None if part is None else _canonical(framework, part[2])
    return None if part is None or inner is None else (f"{part[1]}.{inner[0]}", inner[1])


def _layer(arrays: Mapping[str, np.ndarray], name: str | None, options: Mapping[str, Any]) -> tuple[Layer, dict]:
    """The layer whose arrays these are, and its constructor's arguments."""
    shapes = {key: array.shape for key, array in arrays.items()}
    candidates = [layer_named(name)] if name else [layer for layer in LAYERS if _knows(layer, shapes)]
    fitting: list[tuple[Layer, dict[str, Any]]] = []
    unseen, refused = [], []
    for layer in candidates:
        try:
            fitting.append((layer, whole_config(layer, shapes, options)[0]))
        except UnseenError as error:
            unseen.append((layer, error))
        except WeightError as error:
            refused.append(error)
    if len(fitting) == 1 and not unseen:
        return fitting[0]
    possible = [layer.name for layer, _ in fitting + unseen]
    if len(possible) > 1:
        raise UnseenError(f"the arrays fit {' and '.join(possible)}: pass layer=... , one of them.")
    if unseen:
        raise unseen[0][1]
    if len(refused) == 1:
        raise refused[0]
    raise WeightError(
        f"no layer has the arrays {', '.join(f'{key} {shape}' for key, shape in list(shapes.items())[:8])}."
    )


def _knows(layer: Layer, names: Mapping[str, Any]) -> bool:
    known = {parameter.name for parameter in layer.parameters}
    parts = {part.partition(".")[0] for part in layer.parts}
    return all(pattern(name) in known or name.partition(".")[0] in parts for name in names)


def write(framework: str, layer: Layer, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict:
    """The arrays under the paths that they have in that framework."""
    made = {}
    for name, path, axes in _entries(framework, layer, layer.sizes(config)):
        array = arrays[name]
        made[path] = np.array(array if axes is None else array.transpose(np.argsort(axes)), order="C")
        if path.endswith("w.value"):
            made[path] = made[path].reshape(1)
    return made


def _entries(framework: str, layer: Layer, sizes: Sizes) -> Iterator[tuple[str, str, Axes]]:
    table = {canonical: (path, axes) for canonical, path, axes in tables(framework).get(layer.name, ())}
    for name in layer.own_shapes(sizes):
        path, axes = table[pattern(name)]
        yield name, SAVED.get(framework, {}).get(path, path).format(layer=name.partition(".")[0]), axes
    for inside, part in layer.inside(sizes).items():
        for name, path, axes in _entries(framework, part.layer, part.layer.sizes(part.config)):
            yield f"{inside}.{name}", f"{inside}.{path}", axes


# ------------------------------------------------------------------------------------------------ Keras' numbers

GATED, BRIDGED = ("W", "U", "b", "b_hn"), ("W", "b_s")
"""The variables of a recurrent layer, and of a bridge, in the order of their numbers."""
BESIDE = {"W_q": "w_v", "W_p": "v_p", "W": "v", "rnn": "initial"}
"""The one variable that a layer has itself, by the name of a layer or variable beside it."""
ALONE = {(1, 0): "g", (1, 1): "b", (2, 0): "P"}
"""The variables of a layer without others, by the number of axes and their own number; w is a scalar."""


IN_LISTS = re.compile(r"(?<![^.])layers\.transformer_(?:en|de)coder_layer(?:_(\d{1,4}))?(?=\.)")
"""Matches a layer of a stack, which Keras numbers by the name of its class."""


def _layer_number(match: re.Match[str]) -> str:
    return f"layers.{match[1] or 0}"


def _from_h5(name: str, axes: Mapping[str, int]) -> str:
    """The path of attributes of a variable that a .weights.h5 file numbers; other names as they are.

    axes are the names of all arrays, with the number of axes that each has.
    """
    match = re.fullmatch(r"(?P<within>(?:.*?\.)?)vars\.(?P<number>\d{1,4})", name)
    if match is None:
        return name
    within, number = match["within"], int(match["number"])
    start, _, last = within.removesuffix(".").rpartition(".")
    layer = re.fullmatch(r"weights(?:_(\d{1,4}))?", last)
    variables = GATED if f"{within}vars.{len(BRIDGED)}" in axes else BRIDGED
    if layer and number < len(variables):
        return f"{start}.{int(layer[1] or 0)}.{variables[number]}"
    if re.fullmatch(r"W(_\w)?|dense|readout", last) and number < 2:
        return f"{within}{('kernel', 'bias')[number]}"
    if last == "embedding":
        return f"{within}embeddings"
    beside = {other.removeprefix(within).partition(".")[0] for other in axes if other.startswith(within)}
    alone = ALONE.get((axes[name], number), "w")
    return within + next((variable for key, variable in BESIDE.items() if key in beside), alone)


def to_h5(path: str, layer: str) -> str:
    """The name in a .weights.h5 file of a variable of a backend's layer, with that path of attributes."""
    match = re.fullmatch(r"(?P<start>(?:.*\.)?(?:backward_)?layers)\.(?P<layer>\d+)\.(?P<name>\w+)", path)
    if match:
        number = "" if match["layer"] == "0" else f"_{match['layer']}"
        variables = BRIDGED if match["name"] in BRIDGED[1:] else GATED
        return f"{match['start']}.weights{number}.vars.{variables.index(match['name'])}".replace(".", "/")
    stack = "decoder" if layer == "TransformerDecoder" or path.startswith("decoder.") else "encoder"
    of_class = f"layers.transformer_{stack}_layer"
    path = re.sub(r"(?<![^.])layers\.(\d+)(?=\.)", lambda match: of_class + f"_{match[1]}" * (match[1] != "0"), path)
    owner, _, name = path.rpartition(".")
    return f"{owner + '.' if owner else ''}vars.{int(name in ('bias', 'b'))}".replace(".", "/")
