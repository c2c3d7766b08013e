"""Infer a layer's constructor arguments from the shapes of its canonical arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attention_core.errors import check_options
from attention_core.operators import find
from attention_core.operators.attention import SCORES
from attention_core.specification import Layer
from backends.weights.errors import WeightError


class UnseenError(WeightError):
    """The arrays fit, but do not determine one of the constructor arguments."""


UNSEEN = ("norm", "activation", "epsilon")
"""The options that change the function of a layer with the same arrays: a default would be a guess."""
UNSEEN_OF_STACKS = (*UNSEEN, "positions")

Shapes = Mapping[str, tuple[int, ...]]
Options = Mapping[str, Any]


def config_of(layer: Layer, shapes: Shapes, options: Options) -> dict[str, Any]:
    """Infer the constructor arguments from array shapes, completed by options.

    options are the arguments that shapes do not determine (num_heads, window, dropout, ...).

    Raises: WeightError if an array that determines a size is missing, or an option is needed.
    """
    known = {option.name for option in layer.options}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise WeightError(f"{layer.name} has no option {unknown[0]!r}; it has {', '.join(sorted(known))}.")
    by_shapes = CONFIGS[layer.name](shapes, options) if layer.name in CONFIGS else _by_axes(layer, shapes)
    for name, value in options.items():
        if by_shapes.get(name, value) != value:
            raise WeightError(
                f"{layer.name}: {name} is {by_shapes[name]!r} by the shapes of the arrays, but {value!r} was passed."
            )
    config = {**by_shapes, **options}
    unseen = UNSEEN_OF_STACKS if "num_layers" in known else UNSEEN
    needed = [
        option.name
        for option in layer.options
        if option.name not in config and (option.default is None or option.name in unseen)
    ]
    if needed:
        passed = ", ".join(f"{name}=..." for name in needed)
        raise UnseenError(
            f"{layer.name}: {', '.join(needed)} cannot be inferred from the shapes of the arrays: pass {passed} ."
        )
    return config


def _size(shapes: Shapes, name: str, rank: int, axis: int) -> int:
    shape = shapes.get(name)
    if shape is None:
        raise WeightError(f"the array {name} is missing; there are {', '.join(sorted(shapes)) or 'none'}.")
    if len(shape) != rank:
        raise WeightError(f"{name} has shape {shape}, expected {rank} {'axis' if rank == 1 else 'axes'}.")
    return shape[axis]


def inner(shapes: Shapes, part: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of a layer inside, under their names in it."""
    return {name.removeprefix(f"{part}."): shape for name, shape in shapes.items() if name.startswith(f"{part}.")}


def _unseen(layer: str, option: str, choices: str) -> UnseenError:
    return UnseenError(f"{layer}: {option} cannot be inferred from the arrays: pass {option}=... , one of {choices}.")


def _by_axes(layer: Layer, shapes: Shapes) -> dict[str, Any]:
    """The sizes that are axes of the layer's arrays."""
    sizes = {option.name for option in layer.options}
    config: dict[str, Any] = {}
    for parameter in layer.parameters:
        for axis, name in enumerate(parameter.axes):
            if name in sizes and name not in config:
                config[name] = _size(shapes, parameter.name, len(parameter.axes), axis)
    return config


# ------------------------------------------------------------------------------------------------ attention

_ARRAYS = {
    name: set(
        layer.shapes(layer.sizes({**{option.name: 1 for option in layer.options if option.default is None}, **given}))
    )
    for name, (layer, given) in SCORES.items()
}
"""The arrays of each score."""


def _score(layer: str, shapes: Shapes, query_size: int, key_size: int, options: Options) -> dict[str, Any]:
    """The score whose arrays these are, with the number of positions if it has one."""
    score = options.get("score")
    if score is None:
        known = {name for names in _ARRAYS.values() for name in names if name in shapes}
        fitting = [name for name, names in _ARRAYS.items() if names == known]
        fitting = fitting or [name for name, names in _ARRAYS.items() if names > known]
        if len(fitting) > 1 and known == {"W"}:
            rows = {"location": shapes["W"][1:] == (query_size,)}
            by_shape = [name for name in fitting if rows.get(name, shapes["W"] == (query_size, key_size))]
            fitting = by_shape if len(by_shape) == 1 else fitting
        if len(fitting) != 1:
            raise _unseen(layer, "score", ", ".join(fitting))
        score = fitting[0]
    positions = {"num_positions": _size(shapes, "W", 2, 0)} if score == "location" else {}
    return {"score": score, **positions}


def _hidden_size(shapes: Shapes, score: str, option: str = "hidden_size") -> dict[str, Any]:
    """The features of the score's hidden layer, if it has one, as an option of that name."""
    name = {"additive": "w_v", "concat": "v", "concat_bias": "v"}.get(score)
    return {} if name is None else {option: _size(shapes, name, 1, 0)}


def _concat(shapes: Shapes, options: Options) -> dict[str, Any]:
    both, config = _size(shapes, "W", 2, 1), {"hidden_size": _size(shapes, "W", 2, 0), "bias": "b" in shapes}
    for given, other in (("query_size", "key_size"), ("key_size", "query_size")):
        if given in options:
            config[other] = both - options[given]
    return config


def _local(shapes: Shapes, options: Options) -> dict[str, Any]:
    config: dict[str, Any] = {"mode": "predictive"} if "W_p" in shapes else {}
    scored = inner(shapes, "scored")
    sizes = _sides(scored, options, _size(shapes, "W_p", 2, 1) if "W_p" in shapes else None)
    config |= sizes | _score("LocalAttention", scored, sizes["query_size"], sizes["key_size"], options)
    hidden = {"hidden_size": _size(shapes, "W_p", 2, 0)} if "W_p" in shapes else _hidden_size(scored, config["score"])
    return config | hidden


def _hard(shapes: Shapes, options: Options) -> dict[str, Any]:
    scored = inner(shapes, "scored")
    sizes = _sides(scored, options, None)
    config = sizes | _score("HardAttention", scored, sizes["query_size"], sizes["key_size"], options)
    return config | _hidden_size(scored, config["score"])


def _sides(scored: Shapes, options: Options, query_size: int | None) -> dict[str, Any]:
    """The sizes of query and key of an attention layer inside another one."""
    given = {name: options[name] for name in ("query_size", "key_size") if name in options}
    if query_size is not None:
        given.setdefault("query_size", query_size)
    if "W_q" in scored:
        return {"query_size": scored["W_q"][-1], "key_size": _size(scored, "W_k", 2, 1)}
    if "v" in scored:
        both = _size(scored, "W", 2, 1)
        if "query_size" in given:
            given.setdefault("key_size", both - given["query_size"])
        if "key_size" in given:
            given.setdefault("query_size", both - given["key_size"])
    elif "W" in scored and options.get("score") != "location":
        given = {"query_size": _size(scored, "W", 2, 0), "key_size": scored["W"][1]} | given
    for name in ("query_size", "key_size"):
        if name not in given:
            raise UnseenError(f"{name} cannot be inferred from the shapes of the arrays: pass {name}=... .")
    return given


def _heads(shapes: Shapes, options: Options) -> dict[str, Any]:
    config = {
        "query_size": _size(shapes, "W_q", 2, 1),
        "key_size": _size(shapes, "W_k", 2, 1),
        "value_size": _size(shapes, "W_v", 2, 1),
        "hidden_size": _size(shapes, "W_q", 2, 0),
        "bias": any(name.startswith("b_") for name in shapes),
    }
    keys = _size(shapes, "W_k", 2, 0)
    if keys != config["hidden_size"] and "num_heads" in options:
        config["num_key_heads"] = options["num_heads"] * keys // config["hidden_size"]
    scored = inner(shapes, "scored")
    if not scored:  # of the scores without parameters this is the usual one
        return {"score": options.get("score", "scaled_dot"), **config}
    heads = options.get("num_heads")
    size = config["hidden_size"] // heads if heads else scored.get("W", (0,))[-1]
    return config | _score("MultiHeadAttention", scored, size, size, options)


# ------------------------------------------------------------------------------------------------ Transformer


def _feed_forward(shapes: Shapes, options: Options) -> dict[str, Any]:
    return {
        "features": _size(shapes, "W_1", 2, 1),
        "hidden_size": _size(shapes, "W_1", 2, 0),
        "gated": "W_3" in shapes,
        "bias": "b_1" in shapes,
    }


def _transformer_layer(shapes: Shapes, options: Options) -> dict[str, Any]:
    config = _feed_forward(inner(shapes, "feed_forward"), {})
    attention = inner(shapes, "self_attention")
    config |= {name: value for name, value in _heads(attention, options).items() if name in ("score", "num_key_heads")}
    if config["bias"]:
        config["rms"] = "norm_1.b" not in shapes
    elif "rms" not in options:  # then LayerNorm and RMSNorm have the same arrays
        raise _unseen("a Transformer layer without biases", "rms", "false, true")
    return config


def _transformer_decoder_layer(shapes: Shapes, options: Options) -> dict[str, Any]:
    memory = _size(inner(shapes, "cross_attention"), "W_k", 2, 1)
    return {**_transformer_layer(shapes, options), "memory_size": memory}


def _stack(shapes: Shapes, options: Options) -> dict[str, Any]:
    """What both stacks have."""
    config = _transformer_layer(inner(shapes, "layers.0"), options)
    config |= {"vocab_size": _size(shapes, "embedding", 2, 0), "num_layers": _depth(inner(shapes, "layers"))}
    if "positions.P" in shapes:
        config |= {"positions": "learned", "num_positions": _size(shapes, "positions.P", 2, 0)}
    if "bias_table" in shapes:
        config |= {"positions": "relative", "num_buckets": _size(shapes, "bias_table", 2, 0)}
    last_norm = "norm.g" in shapes
    if last_norm != (options.get("norm") == "pre"):
        config["last_norm"] = last_norm
    return config


def _transformer_decoder(shapes: Shapes, options: Options) -> dict[str, Any]:
    memory = _size(inner(shapes, "layers.0.cross_attention"), "W_k", 2, 1)
    return {**_stack(shapes, options), "memory_size": memory}


def _transformer_translator(shapes: Shapes, options: Options) -> dict[str, Any]:
    parts = {part: inner(shapes, part) for part in ("encoder", "decoder")}
    if options.get("shared") and "embedding" in parts["decoder"]:
        parts["encoder"]["embedding"] = parts["decoder"]["embedding"]
    encoder, decoder = (_stack(part, options) for part in parts.values())
    vocabularies = {"source_vocab_size": encoder.pop("vocab_size"), "target_vocab_size": decoder["vocab_size"]}
    return {**vocabularies, **encoder}


# ------------------------------------------------------------------------------------------------ recurrent


def _depth(shapes: Shapes) -> int:
    """How many layers are numbered."""
    return 1 + max((int(name.partition(".")[0]) for name in shapes if name.partition(".")[0].isdecimal()), default=0)


def _recurrent(shapes: Shapes, options: Options) -> dict[str, Any]:
    return {
        "input_size": _size(shapes, "0.W", 3, 2),
        "hidden_size": _size(shapes, "0.U", 3, 2),
        "num_layers": _depth(shapes),
        "bidirectional": any(".backward." in name for name in shapes),
    }


def _cell(shapes: Shapes) -> str:
    """The recurrent layer that the arrays are of, by its option's name."""
    return "lstm" if _size(shapes, "0.b", 2, 0) == 4 else "gru"


def _encoder(shapes: Shapes, options: Options) -> dict[str, Any]:
    rnn = _recurrent(inner(shapes, "rnn"), {})
    del rnn["input_size"]
    return {"vocab_size": _size(shapes, "embedding", 2, 0), "embed_size": _size(shapes, "embedding", 2, 1), **rnn}


def _bridge(shapes: Shapes, options: Options) -> dict[str, Any]:
    if not shapes:
        return {}
    parts, merged, read = (_size(shapes, "0.W", 3, axis) for axis in range(3))
    method = options.get("method")
    if method not in ("project", "backward"):
        raise _unseen("Bridge", "method", "project, backward")
    return {
        "hidden_size": read if method == "backward" else read // 2,
        "num_layers": _depth(shapes),
        "output_size": merged,
        "cell": "lstm" if parts == 2 else "gru",
    }


# ------------------------------------------------------------------------------------------------ decoders


def _decoder(shapes: Shapes, options: Options) -> dict[str, Any]:
    """What every decoder has; memory_size as the rest of what the recurrent layer reads beside the token."""
    rnn = inner(shapes, "rnn")
    recurrent = _recurrent(rnn, {})
    embed = _size(shapes, "embedding", 2, 1)
    return {
        "vocab_size": _size(shapes, "dense.W", 2, 0),
        "embed_size": embed,
        "hidden_size": recurrent["hidden_size"],
        "num_layers": recurrent["num_layers"],
        "memory_size": recurrent["input_size"] - embed,
        "cell": _cell(rnn),
        **({"initial": "learned"} if "initial" in shapes else {}),
    }


def _attending(layer: str, config: dict[str, Any], attention: Shapes, options: Options) -> dict[str, Any]:
    config |= _score(layer, attention, config["hidden_size"], config["memory_size"], options)
    return config | _hidden_size(attention, config["score"], "attention_size")


def _bahdanau(shapes: Shapes, options: Options) -> dict[str, Any]:
    config, attention = _decoder(shapes, options), inner(shapes, "attention")
    read, known = config["memory_size"] + config["embed_size"], None
    if "W_k" in attention:
        known = _size(attention, "W_k", 2, 1)
    elif "v" in attention:
        known = _size(attention, "W", 2, 1) - config["hidden_size"]
    if known == read or (known is None and options.get("reads") == "context"):
        config |= {"memory_size": read, "reads": "context"}
    config = _attending("BahdanauDecoder", config, attention, options)
    if "readout.W" in shapes:
        return config | {"readout": "maxout", "maxout_size": _size(shapes, "readout.W", 2, 0) // 2}
    return config | {"readout": "dense"}


def _luong(shapes: Shapes, options: Options) -> dict[str, Any]:
    config = _decoder(shapes, options)
    fed = config["memory_size"]  # what is read beside the token is h̃, the context or nothing
    config["memory_size"] = _size(shapes, "W_c", 2, 1) - config["hidden_size"]
    feeding = {config["memory_size"]: "context", config["hidden_size"]: "attentional", 0: "none"}
    if fed in feeding and not (config["memory_size"] == fed == config["hidden_size"] and "input_feeding" in options):
        config["input_feeding"] = feeding[fed]
    attention = inner(shapes, "attention")
    scored = inner(attention, "scored")
    if "W_p" not in attention and not scored:
        return _attending("LuongDecoder", config, attention, options)
    config |= _attending("LuongDecoder", config, scored, options)
    config["alignment"] = "predictive" if "W_p" in attention else "monotonic"
    if "window" not in options:
        raise UnseenError("LuongDecoder: window cannot be inferred from the shapes of the arrays: pass window=... .")
    return config | ({"attention_size": _size(attention, "W_p", 2, 0)} if "W_p" in attention else {})


def _translator(shapes: Shapes, options: Options) -> dict[str, Any]:
    encoder = _encoder(inner(shapes, "encoder"), {})
    decoder = inner(shapes, "decoder")
    kind = options.get("decoder")
    if kind is None and "W_c" in decoder:
        kind = "luong"
    elif kind is None and (inner(decoder, "attention") or "readout.W" in decoder or options.get("score") is not None):
        kind = "bahdanau"
    if kind is None:
        raise _unseen("Translator", "decoder", "bahdanau (with score=...), fixed")
    config = {
        "source_vocab_size": encoder["vocab_size"],
        "target_vocab_size": _size(decoder, "embedding", 2, 0),
        **{name: encoder[name] for name in ("embed_size", "hidden_size", "num_layers", "bidirectional")},
        "cell": _cell(inner(decoder, "rnn")),
        "decoder": kind,
    }
    encoder_cell = _cell(inner(shapes, "encoder.rnn"))
    config |= {"encoder_cell": encoder_cell} if encoder_cell != config["cell"] else {}
    if kind != "fixed":
        arguments = {"bahdanau": _bahdanau, "luong": _luong}[kind](decoder, options)
        config |= {name: arguments[name] for name in ("score", "num_positions") if name in arguments}
        config |= {"reads": "context"} if "reads" in arguments else {}
        config |= {"readout": arguments["readout"]} if arguments.get("readout") == "maxout" else {}
        fed = arguments.get("input_feeding", "attentional")
        config |= {"input_feeding": fed} if fed != "attentional" else {}
    if encoder["bidirectional"]:
        bridge = inner(shapes, "bridge")
        if bridge:
            read = _size(bridge, "0.W", 3, 2)
            config["bridge"] = "project" if read == 2 * encoder["hidden_size"] else "backward"
        else:
            doubled = _size(decoder, "rnn.0.U", 3, 2) == 2 * encoder["hidden_size"]
            config["bridge"] = "concatenate" if doubled else "sum"
    return config


CONFIGS: dict[str, Callable[[Shapes, Options], dict[str, Any]]] = {
    "ConcatAttention": _concat,
    "KernelAttention": lambda shapes, options: {"learned": "w" in shapes},
    "LocalAttention": _local,
    "HardAttention": _hard,
    "NadarayaWatson": lambda shapes, options: {"learned": "kernel.w" in shapes},
    "MultiHeadAttention": _heads,
    "LayerNorm": lambda shapes, options: {"features": _size(shapes, "g", 1, 0), "bias": "b" in shapes},
    "FeedForward": _feed_forward,
    "TransformerEncoderLayer": _transformer_layer,
    "TransformerDecoderLayer": _transformer_decoder_layer,
    "TransformerEncoder": _stack,
    "TransformerDecoder": _transformer_decoder,
    "TransformerTranslator": _transformer_translator,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "GRUEncoder": _encoder,
    "LSTMEncoder": _encoder,
    "Bridge": _bridge,
    "BahdanauDecoder": _bahdanau,
    "LuongDecoder": _luong,
    "FixedContextDecoder": _decoder,
    "Translator": _translator,
}


def check_shapes(layer: Layer, config: Mapping[str, Any], shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Check the shapes against those of the layer with these arguments."""
    try:
        expected = layer.shapes(check_options(layer, **config))
    except ValueError as error:
        raise WeightError(f"no layer has these array shapes: {error}") from error
    for name, shape in shapes.items():
        if name not in expected:
            raise WeightError(
                f"{layer.name}: {name} {shape} is left over; the layer has {', '.join(expected) or 'no arrays'}."
            )
        if shape != expected[name]:
            hint = " Its transpose would fit." if shape[::-1] == expected[name] else ""
            raise WeightError(f"{layer.name}: {name} has shape {shape}, expected {expected[name]}.{hint}")
    return expected


def whole_config(
    layer: Layer, shapes: Shapes, options: Options, title: str = ""
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The constructor arguments and the shapes of all arrays; raises if one is missing."""
    config = config_of(layer, shapes, options)
    expected = check_shapes(layer, config, shapes)
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise WeightError(f"{title}{missing[0]} {expected[missing[0]]} of {layer.name} is missing.")
    return config, expected


def layer_named(name: str) -> Layer:
    """The layer of the specification of that name."""
    try:
        layer = find(name)
    except KeyError as error:
        raise WeightError(str(error.args[0])) from error
    if not isinstance(layer, Layer):
        raise WeightError(f"{name} is a function, expected a layer.")
    return layer
