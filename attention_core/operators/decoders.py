"""The decoders, as data."""

from __future__ import annotations

from attention_core.errors import check_needed, check_unused
from attention_core.operators.attention import ALIKE, HIDDEN_SCORES, score_layer, score_option
from attention_core.operators.common import BAHDANAU, CHO_CONTEXT, LUONG, LUONG_FEEDING, MASK, VALID_LENS, WU
from attention_core.operators.encoders import CELL, EMBED_SIZE, EMBEDDING, TOKENS, VOCAB_SIZE
from attention_core.operators.local import LOCAL_ATTENTION, NUM_POSITIONS
from attention_core.operators.recurrent import (
    BETWEEN_MASK,
    BETWEEN_STEP_MASK,
    HIDDEN_SIZE,
    NUM_LAYERS,
    STATE,
    recurrent_part,
    recurrent_sizes,
)
from attention_core.rules import hypotheses, initial_state, known_tokens, position_for_each_key
from attention_core.specification import Config, Layer, Operator, Option, Parameter, Part, Sizes, Tensor

# ------------------------------------------------------------------------------------------------ options by name

_MEMORY_SIZE = Option(
    "memory_size", "int", "features of the encoder's outputs; hidden_size if None", "None", keyword_only=True
)
_ATTENTION_SIZE = Option(
    "attention_size",
    "int",
    "hidden features of an additive or concat score; hidden_size if None",
    "None",
    keyword_only=True,
)
_INITIAL = Option(
    "initial",
    "str",
    "first state: the encoder's last state, zeros, or a parameter",
    "'encoder'",
    keyword_only=True,
    choices=("encoder", "zero", "learned"),
)
DECODER_DROPOUT = Option(
    "dropout",
    "float",
    "dropout rate of the attention weights, and between recurrent layers, in training",
    "0.0",
    "rate",
    keyword_only=True,
)
BOS = Option("bos", "int", "token that starts a sequence", domain="token", keyword_only=True)
EOS = Option("eos", "int", "token that ends a sequence", domain="token", keyword_only=True)
MAX_STEPS = Option("max_steps", "int", "maximum number of tokens to decode", domain="count", keyword_only=True)
SEARCH = (
    Option("width", "int", "hypotheses kept at each step", keyword_only=True),
    Option("num_best", "int", "hypotheses returned, best first", "1", keyword_only=True),
    Option(
        "length_penalty",
        "float",
        "exponent α; 0 ranks by log probability",
        "0.0",
        "number",
        keyword_only=True,
    ),
)

# ------------------------------------------------------------------------------------------------ tensors by name

_ENCODER_OUTPUTS = Tensor("encoder_outputs", ("batch", "keys", "memory_size"), "keys and values of the attention")
_ENCODER_STATE = Tensor("state", STATE.axes, "the encoder's last state if initial='encoder', else None", optional=True)
_STEP_VALID_LENS = Tensor("valid_lens", ("batch", "steps?"), VALID_LENS.meaning, "integer", True)
_STEP_MASK = Tensor("mask", ("batch", "steps", "keys"), MASK.meaning, "boolean", True, True)
_ONE_LENS = Tensor("valid_lens", ("batch",), VALID_LENS.meaning, "integer", True)
_ONE_MASK = Tensor("mask", ("batch", "one", "keys"), MASK.meaning, "boolean", True, True)
_ATTENTION_DROPOUT = Tensor(
    "attention_dropout_mask", ("batch", "steps", "keys"), "factor of each weight", optional=True
)
GREEDY_OUTPUTS = (
    Tensor("tokens", ("batch", "max_steps"), "decoded ids, padded with eos", "integer"),
    Tensor("lengths", ("batch",), "number of tokens before eos", "integer"),
    Tensor("weights", ("batch", "max_steps", "keys"), "probabilities over the keys; 0 after the step that gave eos"),
)
BEAM_OUTPUTS = (
    Tensor("tokens", ("batch", "num_best", "max_steps"), "decoded ids, padded with eos", "integer"),
    Tensor("lengths", ("batch", "num_best"), "number of tokens before eos", "integer"),
    Tensor("scores", ("batch", "num_best"), "best first; natural logarithms, divided by the length penalty"),
    Tensor(
        "weights",
        ("batch", "num_best", "max_steps", "keys"),
        "probabilities over the keys; 0 after the step that gave eos",
    ),
)
_MEMORY = (
    Tensor("memory.keys", ("batch", "keys", "memory_features"), "prepared keys"),
    Tensor("memory.values", ("batch", "keys", "memory_size"), "prepared values"),
)
_LUONG_STATE = (
    Tensor("state.rnn", STATE.axes, STATE.meaning),
    Tensor("state.fed", ("batch", "fed_size"), "the last context if input_feeding='context', else h̃; 0 at the start"),
    Tensor("state.position", ("batch",), "tokens decoded so far", "integer"),
)


def _decoder_sizes(config: Config) -> Sizes:
    return {**recurrent_sizes(config), "memory_size": config["memory_size"] or config["hidden_size"], "one": 1}


def _attention_size(sizes: Sizes) -> int | None:
    given = sizes["attention_size"]
    return given or sizes["hidden_size"] if sizes["score"] in HIDDEN_SCORES else given


def _methods(name: str, formula: str, source: str, state: tuple[Tensor, ...] = (STATE,)) -> tuple[Operator, ...]:
    memory = (*_MEMORY, Tensor("memory.mask", _STEP_MASK.axes, MASK.meaning, "boolean", True, True))
    memory_of_step = (*_MEMORY, Tensor("memory.mask", _ONE_MASK.axes, MASK.meaning, "boolean", True, True))
    return (
        Operator(
            name=f"{name}.prepare",
            summary="Project the encoder's outputs and zero the hidden ones, once for all steps.",
            formula="memory = attention.prepare(encoder_outputs, encoder_outputs)",
            source="this specification",
            tensors=(_ENCODER_OUTPUTS, _STEP_VALID_LENS, _STEP_MASK),
            outputs=memory,
            rules=(position_for_each_key,),
        ),
        Operator(
            name=f"{name}.start",
            summary="Return the decoder's state before its first step.",
            formula="state = the encoder's state, 0, or the parameter initial, depending on the option initial",
            source="this specification",
            tensors=(*memory, _ENCODER_STATE),
            outputs=state,
            rules=(initial_state,),
        ),
        Operator(
            name=f"{name}.step",
            summary="Decode one token.",
            formula=formula,
            source=source,
            tensors=(Tensor("tokens", ("batch",), "token ids", "integer"), *state, *memory_of_step),
            keyword_tensors=(
                BETWEEN_STEP_MASK,
                Tensor("attention_dropout_mask", ("batch", "keys"), _ATTENTION_DROPOUT.meaning, optional=True),
            ),
            outputs=(
                Tensor("logits", ("batch", "vocab_size"), "scores of the next token (natural logarithm)"),
                *state,
                Tensor("weights", ("batch", "keys"), "probabilities over the keys"),
            ),
            notes="The mask of the memory has one row, that of this step.",
        ),
        Operator(
            name=f"{name}.call",
            summary="Decode given tokens: each step reads the given token, not the predicted one (teacher forcing).",
            formula="logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)",
            source=source,
            tensors=(TOKENS, _ENCODER_OUTPUTS, _ENCODER_STATE, _STEP_VALID_LENS, _STEP_MASK),
            keyword_tensors=(BETWEEN_MASK, _ATTENTION_DROPOUT),
            outputs=(
                Tensor("logits", ("batch", "steps", "vocab_size"), "scores of each next token (natural logarithm)"),
                *state,
                Tensor("weights", ("batch", "steps", "keys"), "probabilities over the keys"),
            ),
            rules=(position_for_each_key, initial_state),
        ),
        Operator(
            name=f"{name}.greedy",
            summary="Decode by feeding back the most probable token until the end token.",
            formula="token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos",
            source=source + ", with beam width 1",
            tensors=(_ENCODER_OUTPUTS, _ENCODER_STATE, _ONE_LENS, _ONE_MASK),
            options=(BOS, EOS, MAX_STEPS),
            outputs=GREEDY_OUTPUTS,
            rules=(position_for_each_key, initial_state, known_tokens),
        ),
        Operator(
            name=f"{name}.beam",
            summary="Decode by keeping the best hypotheses at every step (beam search).",
            formula=(
                "score = sum of ln p(token[t]) / ((5 + n)/6)^length_penalty, n counting the tokens up to eos;  "
                "keep the width best continuations; a finished hypothesis continues unchanged"
            ),
            source=WU,
            tensors=(_ENCODER_OUTPUTS, _ENCODER_STATE, _ONE_LENS, _ONE_MASK),
            options=(BOS, EOS, MAX_STEPS, *SEARCH),
            outputs=BEAM_OUTPUTS,
            notes=(
                "Every step ranks all continuations of the running hypotheses together with the finished ones. Of "
                "equal scores, the first by hypothesis, then by token, wins. A larger length_penalty favours longer "
                "hypotheses. With max_steps=0, one hypothesis has no tokens and score 0; the others have score -inf."
            ),
            rules=(position_for_each_key, initial_state, known_tokens, hypotheses),
        ),
    )


_SHARED = (
    EMBEDDING,
    Parameter("initial", ("num_layers", "state_size"), "the first state, if initial='learned'", "hidden_size"),
)
_DENSE = (
    Parameter("dense.W", ("vocab_size", "hidden_size"), "weights of the logits", "dense_size"),
    Parameter("dense.b", ("vocab_size",), "biases of the logits", "dense_size"),
)


def _own_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embedding": (sizes["vocab_size"], sizes["embed_size"])}
    if sizes["initial"] == "learned":
        shapes["initial"] = (sizes["num_layers"], sizes["state_size"])
    return shapes


def _dense_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    return {"dense.W": (sizes["vocab_size"], sizes["dense_size"]), "dense.b": (sizes["vocab_size"],)}


# ------------------------------------------------------------------------------------------------ Bahdanau

_BAHDANAU_FORMULA = (
    "context, weights = attention(top output, encoder_outputs);  "
    "state' = rnn([context; embedding[token]], state), without the embedding if reads='context';  "
    "logits = dense.W top output' + dense.b;  maxout: "
    "logits = dense.W m + dense.b, m[j] = max(t[2j], t[2j + 1]), t = readout.W [top output; embedding[token]; context] "
    "+ readout.b"
)


def _bahdanau_sizes(config: Config) -> Sizes:
    sizes = {**_decoder_sizes(config), "attention_size": _attention_size(config)}
    if config["readout"] == "dense":
        check_unused("BahdanauDecoder", "maxout_size", config["maxout_size"], "readout='dense' has no maxout layer")
    maxout = config["maxout_size"] or config["hidden_size"]
    readout = config["hidden_size"] + config["embed_size"] + sizes["memory_size"]
    sizes |= {"maxout_size": maxout, "readout_size": readout}
    sizes["dense_size"] = maxout if config["readout"] == "maxout" else config["hidden_size"]
    return sizes


def _bahdanau_inside(sizes: Sizes) -> dict[str, Part]:
    names = ("score", "hidden_size", "memory_size", "attention_size", "num_positions", "dropout")
    embedded = sizes["embed_size"] if sizes["reads"] == "both" else 0
    return {
        "attention": score_layer("BahdanauDecoder", *(sizes[name] for name in names)),
        "rnn": recurrent_part(sizes["cell"], sizes["memory_size"] + embedded, sizes),
    }


def _bahdanau_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    shapes = _own_shapes(sizes)
    if sizes["readout"] == "maxout":
        shapes["readout.W"] = (2 * sizes["maxout_size"], sizes["readout_size"])
        shapes["readout.b"] = (2 * sizes["maxout_size"],)
    return shapes | _dense_shapes(sizes)


BAHDANAU_DECODER = Layer(
    name="BahdanauDecoder",
    summary="Decode with attention whose query is the previous output of the top recurrent layer.",
    formula=_BAHDANAU_FORMULA,
    source=BAHDANAU + "; maxout readout: appendix A.2.2",
    options=(
        VOCAB_SIZE,
        EMBED_SIZE,
        HIDDEN_SIZE,
        NUM_LAYERS,
        _MEMORY_SIZE,
        _ATTENTION_SIZE,
        score_option("additive"),
        NUM_POSITIONS,
        CELL,
        _INITIAL,
        Option(
            "reads",
            "str",
            "what the recurrent layer reads: the context and the embedded token, or the context alone",
            "'both'",
            keyword_only=True,
            choices=("both", "context"),
        ),
        Option(
            "readout",
            "str",
            "logits from the new top output, or as in the paper from the previous one, the token and the context",
            "'dense'",
            keyword_only=True,
            choices=("dense", "maxout"),
        ),
        Option(
            "maxout_size",
            "int",
            "pairs in the maxout readout; hidden_size if None",
            "None",
            keyword_only=True,
        ),
        DECODER_DROPOUT,
    ),
    parameters=(
        *_SHARED,
        Parameter(
            "readout.W",
            ("2 maxout_size", "hidden_size + embed_size + memory_size"),
            "weights of the maxout readout, if readout='maxout'",
            "readout_size",
        ),
        Parameter("readout.b", ("2 maxout_size",), "biases of the maxout readout", "readout_size"),
        *_DENSE,
    ),
    methods=_methods("BahdanauDecoder", _BAHDANAU_FORMULA, BAHDANAU),
    complete=_bahdanau_sizes,
    own_shapes=_bahdanau_shapes,
    inside=_bahdanau_inside,
    parts={
        "attention": "the attention layer of score",
        "rnn": "the GRU or LSTM, which reads the context first, then the embedded token, if reads='both'",
    },
    notes=(
        "The paper's form is readout='maxout', whose readout reads the previous state, with a bidirectional GRUEncoder "
        "and Bridge(method='backward'). Two differences are left: the GRU applies its reset gate after U2 h, the "
        "paper's before, and has biases. With readout='maxout', dense.W reads maxout_size features. With "
        "reads='context' and readout='dense', no token has an effect: each word is chosen without those before it. "
        + ALIKE
    ),
)

# ------------------------------------------------------------------------------------------------ Luong

_LUONG_FORMULA = (
    "state' = rnn([embedding[token]; fed], state), fed = h̃, context or nothing of the step before, depending on the "
    "option input_feeding;  context', weights = attention(top output', encoder_outputs);  "
    "h̃' = tanh(W_c [context'; top output']);  logits = dense.W h̃' + dense.b"
)


def _luong_sizes(config: Config) -> Sizes:
    given = {**config, "attention_size": _attention_size(config)}
    sizes = {**_decoder_sizes(given), "dense_size": config["hidden_size"]}
    if config["alignment"] == "global":
        check_unused("LuongDecoder", "window", config["window"], "alignment='global' sees every key")
    else:
        check_needed("LuongDecoder", "window", config["window"], f"alignment={config['alignment']!r} sees a window")
    sizes["memory_size + hidden_size"] = sizes["memory_size"] + sizes["hidden_size"]
    sizes["fed_size"] = sizes["memory_size" if config["input_feeding"] == "context" else "hidden_size"]
    return sizes


def _luong_inside(sizes: Sizes) -> dict[str, Part]:
    fed = 0 if sizes["input_feeding"] == "none" else sizes["fed_size"]
    rnn = recurrent_part(sizes["cell"], sizes["embed_size"] + fed, sizes)
    if sizes["alignment"] == "global":
        names = ("score", "hidden_size", "memory_size", "attention_size", "num_positions", "dropout")
        return {"attention": score_layer("LuongDecoder", *(sizes[name] for name in names)), "rnn": rnn}
    local = {
        "query_size": sizes["hidden_size"],
        "key_size": sizes["memory_size"],
        "window": sizes["window"],
        "mode": sizes["alignment"],
        "score": sizes["score"],
        "hidden_size": sizes["attention_size"],
        "num_positions": sizes["num_positions"],
        "dropout": sizes["dropout"],
    }
    return {"attention": Part(LOCAL_ATTENTION, local), "rnn": rnn}


LUONG_DECODER = Layer(
    name="LuongDecoder",
    summary="Decode with attention whose query is the current output of the top recurrent layer.",
    formula=_LUONG_FORMULA,
    source=LUONG + "; input feeding: section 3.3",
    options=(
        VOCAB_SIZE,
        EMBED_SIZE,
        HIDDEN_SIZE,
        NUM_LAYERS,
        _MEMORY_SIZE,
        _ATTENTION_SIZE,
        score_option("general"),
        NUM_POSITIONS,
        Option(
            "alignment",
            "str",
            "attention to all keys, or to a window around the step or around a predicted position",
            "'global'",
            keyword_only=True,
            choices=("global", "monotonic", "predictive"),
        ),
        Option(
            "window",
            "int",
            "keys on either side of the centre; None if 'global'",
            "None",
            keyword_only=True,
        ),
        Option(
            "input_feeding",
            "str",
            "what of a step is an input of the next: its attentional vector, as in the paper, its context, or nothing",
            "'attentional'",
            keyword_only=True,
            choices=("attentional", "context", "none"),
        ),
        CELL,
        _INITIAL,
        DECODER_DROPOUT,
    ),
    parameters=(
        *_SHARED,
        Parameter(
            "W_c",
            ("hidden_size", "memory_size + hidden_size"),
            "projects [context; top output]; no bias",
            "memory_size + hidden_size",
        ),
        *_DENSE,
    ),
    methods=_methods("LuongDecoder", _LUONG_FORMULA, LUONG_FEEDING, _LUONG_STATE),
    complete=_luong_sizes,
    own_shapes=lambda sizes: {
        **_own_shapes(sizes),
        "W_c": (sizes["hidden_size"], sizes["memory_size"] + sizes["hidden_size"]),
        **_dense_shapes(sizes),
    },
    inside=_luong_inside,
    parts={
        "attention": "the attention layer of score, inside a LocalAttention unless global",
        "rnn": "the GRU or LSTM, which reads the embedded token, then what is fed",
    },
    notes="Unless alignment='global', window is required. " + ALIKE,
)

# ------------------------------------------------------------------------------------------------ without attention

_CONTEXT_FORMULA = (
    "context = the last open encoder output, weights = 1 there;  "
    "state' = rnn([context; embedding[token]], state);  logits = dense.W top output' + dense.b"
)

FIXED_CONTEXT_DECODER = Layer(
    name="FixedContextDecoder",
    summary="Decode without attention: the context of every step is the encoder's last output.",
    formula=_CONTEXT_FORMULA,
    source=CHO_CONTEXT,
    options=(VOCAB_SIZE, EMBED_SIZE, HIDDEN_SIZE, NUM_LAYERS, _MEMORY_SIZE, CELL, _INITIAL, DECODER_DROPOUT),
    parameters=(*_SHARED, *_DENSE),
    methods=_methods("FixedContextDecoder", _CONTEXT_FORMULA, CHO_CONTEXT),
    complete=lambda config: {**_decoder_sizes(config), "dense_size": config["hidden_size"]},
    own_shapes=lambda sizes: _own_shapes(sizes) | _dense_shapes(sizes),
    inside=lambda sizes: {"rnn": recurrent_part(sizes["cell"], sizes["memory_size"] + sizes["embed_size"], sizes)},
    parts={"rnn": "the GRU or LSTM, which reads the context first, then the embedded token"},
    notes=(
        "With a GRUEncoder of one direction, that output is the encoder's last state. A sequence without an open key "
        "gets context 0 and weights 0. Dropout acts on the weight, as on those of attention."
    ),
)

OPERATORS = (BAHDANAU_DECODER, LUONG_DECODER, FIXED_CONTEXT_DECODER)
