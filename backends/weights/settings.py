"""What a file says of a layer beside its arrays: its class, and the settings that it was made with.

Nothing in it is imported: a class is a text, which a table has or has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from backends.schema import clean
from backends.weights.configs import layer_named
from backends.weights.errors import WeightError
from backends.weights.formats.limits import DEEPEST
from backends.weights.table import Settings, Source, plain

OURS = "attention_parity>"
"""The beginning of the classes of backends.tf."""
MODELS = ("Functional", "Sequential", "Model")
"""The classes of models that are a list of layers."""
OF_ONE_DIRECTION = ("name", "go_backwards", "*_initializer", "*_regularizer", "*_constraint", "dtype")
"""The settings in which the two layers of a Bidirectional differ."""


@dataclass(frozen=True)
class SavedLayer:
    """A layer as a file describes it: the path of its arrays, its class and settings, and the rank of its inputs.

    A class that is not of Keras itself has its package in front: "keras_hub>TransformerEncoder".
    """

    path: str
    kind: str
    settings: Mapping[str, Any]
    rank: int | None = None
    beyond: str = ""
    """What it has that the specification lacks, if that is known of its class."""

    def holds(self, name: str) -> bool:
        """Whether an array of that name is one of the layer."""
        return not self.path or plain(name).startswith(f"{plain(self.path)}.")

    @property
    def title(self) -> str:
        """Path and class, safe to print."""
        return f"{clean(self.path) if self.path else 'the model'} is a {clean(self.kind)}"


def transformers_model(config: Any) -> list[SavedLayer]:
    """The model that a config.json of transformers describes; none if it is no such file.

    Raises: WeightError if its arrays are quantised.
    """
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(kind, str):
        return []
    if config.get("quantization_config"):
        raise WeightError("its arrays are quantised: save the model in float32 first")
    inside = {
        f"{name}.{key}": one
        for name, value in config.items()
        if isinstance(value, dict) and name.startswith("rope_")
        for key, one in value.items()
    }
    if kind in ("t5", "mt5"):  # whose older files say it by another name
        config = {"scale_decoder_outputs": config.get("tie_word_embeddings", True), **config}
    flat = {name: value for name, value in config.items() if not (isinstance(value, dict) and name.startswith("rope_"))}
    return [SavedLayer("", f"transformers>{kind}", {**flat, **inside}, beyond=PARTS_BEYOND.get(kind, ""))]


PARTS_BEYOND = {
    **dict.fromkeys(("bert", "roberta", "electra", "distilbert"), "a norm behind the embeddings, and token types"),
    **dict.fromkeys(("bart", "mbart", "blenderbot"), "a norm behind the embeddings, and positions that begin at 2"),
    **dict.fromkeys(("m2m_100", "nllb"), "positions of the padding id"),
    "whisper": "convolutions in front, and keys without biases",
    "qwen2": "biases of queries, keys and values alone",
    "qwen3": "norms of queries and keys",
    **dict.fromkeys(("gemma", "gemma2", "gemma3"), "norms whose gain is added to 1"),
}
"""Models of transformers that need what comes with later options."""

Locate = Callable[[str, str], str | None]
"""The path of the arrays of the layer with that name, in the model at another path."""


def saved_layers(entry: Any, path: str, locate: Locate, depth: int = 0) -> Iterator[SavedLayer]:
    """Yield the layers of a configuration as Keras writes it: those of a model, or the one that it is.

    Raises: WeightError if it is nested too deep.
    """
    if depth > DEEPEST:
        raise WeightError(f"its layers are nested more than {DEEPEST} levels deep")
    config = entry.get("config") if isinstance(entry, dict) else None
    if isinstance(config, list):  # a Sequential of the first Keras
        config = {"layers": config}
    if not isinstance(config, dict):
        return
    kind, layers = _kind(entry), config.get("layers")
    if kind in MODELS and isinstance(layers, list):
        for layer in layers:
            inner = layer.get("config") if isinstance(layer, dict) else None
            name = inner.get("name") if isinstance(inner, dict) else None
            place = locate(path, name) if isinstance(name, str) else None
            if place is not None:
                yield from saved_layers(layer, place, locate, depth + 1)
        return
    shape = entry.get("build_config", {}).get("input_shape") if isinstance(entry.get("build_config"), dict) else None
    rank = len(shape) if isinstance(shape, list) and not any(isinstance(one, list) for one in shape) else None
    for part in ("layer", "cell"):
        within = config.get(part)
        if kind in ("Bidirectional", "RNN") and isinstance(within, dict) and isinstance(within.get("config"), dict):
            outer = {name: value for name, value in config.items() if name not in (part, "backward_layer")}
            kind, config = _kind(within), {**outer, **within["config"], **_backward(config, within["config"])}
    yield SavedLayer(path, kind, config, rank)


def _kind(entry: Mapping[str, Any]) -> str:
    name, module, registered = (entry.get(key) for key in ("class_name", "module", "registered_name"))
    if isinstance(registered, str) and ">" in registered:
        return registered
    is_keras = module is None or (isinstance(module, str) and module.partition(".")[0] == "keras")
    return str(name) if is_keras else f"{module}>{name}"


def _backward(config: Mapping[str, Any], forward: Mapping[str, Any]) -> dict[str, Any]:
    """What a Bidirectional says of its backward layer, if it is not the forward one in the other direction."""
    entry = config.get("backward_layer")
    backward = entry.get("config") if isinstance(entry, dict) else None
    if not isinstance(backward, dict):
        return {}
    names = {
        name
        for name in {*forward, *backward}
        if forward.get(name) != backward.get(name) and not any(fnmatchcase(name, one) for one in OF_ONE_DIRECTION)
    }
    return {f"backward_layer.{name}": backward.get(name) for name in sorted(names)}


# ------------------------------------------------------------------------------------------------ what they mean


def check_classes(names: Iterable[str], saved: Sequence[SavedLayer], sources: Iterable[Source]) -> str | None:
    """The one source whose class the layers of these arrays have; None if the file does not say, or names several.

    Raises: WeightError if all are of classes without a table, or one has what the specification lacks.
    """
    owners = _owners(names, saved)
    for layer in owners:
        if layer.beyond:
            raise WeightError(
                f"{layer.title} model, which has {layer.beyond}: the specification lacks that. Its layers can be "
                f"converted one by one: pass source=... and prefix=... ."
            )
    found = [[source.name for source in sources if _is_of(layer, source)] for layer in owners]
    if owners and not any(found) and not any(">" in layer.kind for layer in owners):
        listed = ", ".join(layer.title for layer in owners[:4])
        raise WeightError(f"{listed}: of that class there is no table, and another layer computes something else.")
    known = {names[0] for names in found if names}
    return known.pop() if len(known) == 1 and all(found) else None


def _owners(names: Iterable[str], saved: Sequence[SavedLayer]) -> list[SavedLayer]:
    """The layers that hold some of these arrays."""
    return [layer for layer in saved if any(map(layer.holds, names))]


def _is_of(layer: SavedLayer, source: Source) -> bool:
    if source.framework:
        return source.framework == "tf" and layer.kind.startswith(OURS)
    return source.settings is not None and layer.kind in source.settings.kinds


def stated_options(source: Source, names: Sequence[str], saved: Sequence[SavedLayer]) -> dict[str, Any]:
    """The options of the one layer of the source's class that holds some of these arrays, before these are matched.

    Raises: WeightError if a setting of it is one that the specification lacks.
    """
    owners = [layer for layer in _owners(names, saved) if _is_of(layer, source)]
    return _meaning(owners[0], source) if len(owners) == 1 else {}


def options_of(
    source: Source, names: Iterable[str], saved: Sequence[SavedLayer], chosen: bool
) -> dict[str, Any] | None:
    """The constructor arguments that a file has for the layer of these arrays; None if it says nothing of it.

    chosen: whether the user named the source, as a class of one's own needs.

    Raises: WeightError if its class is another one, or a setting has a value that the specification lacks.
    """
    options: dict[str, Any] | None = None
    for layer in _owners(names, saved):
        if not _is_of(layer, source):
            if ">" in layer.kind and chosen:
                continue
            advice = " If it computes the same, pass source=... ." if ">" in layer.kind else ""
            raise WeightError(f"{layer.title}, and no {source.name}: no file says what it computes.{advice}")
        options = {
            **(options or {}),
            **(_arguments_here(layer) if source.framework else _meaning(layer, source)),
        }
    return options


def _arguments_here(layer: SavedLayer) -> dict[str, Any]:
    """The settings of a layer of backends.tf, which are its constructor arguments."""
    known = {option.name for option in layer_named(layer.kind.removeprefix(OURS)).options}
    kind = layer.kind.removeprefix(OURS)
    return {"layer": kind} | {name: one for name, one in layer.settings.items() if name in known and _is_plain(one)}


def with_settings(options: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were passed, and those that the file has.

    Raises: WeightError if they contradict each other.
    """
    for name, value in found.items():
        if options.get(name, value) != value:
            raise WeightError(f"{name} is {value!r} in the file, but {options[name]!r} was passed.")
    return {**options, **found}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _meaning(layer: SavedLayer, source: Source) -> dict[str, Any]:
    """The options that a layer's settings are."""
    known = source.settings or Settings()
    options: dict[str, Any] = dict(known.fixed)
    for name, value in layer.settings.items():
        value = _as_chosen(name, value, layer.rank)
        if name in known.needed:
            if value != known.needed[name] or isinstance(value, bool) != isinstance(known.needed[name], bool):
                raise WeightError(
                    f"{layer.title} with {name}={_text(value)}, and the layer here has {known.needed[name]!r}: "
                    f"converted weights would compute another function."
                )
        elif name in known.options:
            option, values = known.options[name], known.values.get(name)
            if values is not None and not (_is_plain(value) and value in values):
                raise WeightError(
                    f"{layer.title} with {name}={_text(value)}, which the specification lacks; it has "
                    f"{', '.join(map(repr, values))}."
                )
            options |= dict.fromkeys(option.split(), value if values is None else values[value])
        elif value and not any(fnmatchcase(name, one) for one in known.free):
            raise WeightError(
                f"{layer.title} with {clean(name).strip(chr(39))}={_text(value)}, a setting that is not known here: it "
                f"could change what the layer computes."
            )
    return options


def _as_chosen(name: str, value: Any, rank: int | None) -> Any:
    """A setting as it was chosen, where Keras writes what it became for its inputs."""
    if name == "axis":
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        return -1 if rank is not None and value == rank - 1 else value
    return None if name == "attention_axes" and value == [1] else value  # the steps of (batch, steps, features)


def _text(value: Any) -> str:
    """A value, or the name in an object that Keras writes for a function."""
    return clean(value["config"] if isinstance(value, dict) and isinstance(value.get("config"), str) else value)
