"""Generate the reference of operators from the specification: each with its calls and porting pitfalls, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attention_core.operators import ENTRIES, FILE_OF
from attention_core.specification import Layer, Operator, Option, Tensor
from backends import FRAMEWORKS, idiom_of, read_requirements
from parity_tests.reports.porting import DECODING, PORTING, Porting

Entry = Operator | Layer

TITLES = {
    "masking": "Masks, and weights over keys",
    "scoring": "Scores",
    "pooling": "Pooling",
    "linear": "Linear attention",
    "attention": "Attention layers, one for each score",
    "local": "Attention to a window",
    "hard": "Attention to one key",
    "regression": "Kernel regression",
    "multi_head": "Attention with several heads",
    "compressed": "Attention to a memory that is shorter than the input",
    "segments": "Attention to segments",
    "positions": "Positions",
    "normalization": "Normalization",
    "feed_forward": "Feed-forward networks",
    "recurrent": "Recurrent layers",
    "encoders": "Encoders and bridges",
    "decoders": "Decoders",
    "transformer_layers": "Layers of a Transformer",
    "transformer": "Transformers",
    "translation": "Translation",
    "training": "Loss, clipping and optimisers",
    "images": "Images",
}
IMPORTS = {name: f"from backends import {name} as attention" for name in FRAMEWORKS}


def page() -> str:
    """The whole page, as Markdown."""
    contents = ["", "## Contents", "", *_contents()]
    return "\n".join([*head(), *contents, *(line for file in TITLES for line in _file(file)), ""])


def entries(file: str) -> list[Entry]:
    """The functions of a file, then its layers."""
    return [entry for entry in ENTRIES if FILE_OF[entry.name] == file]


HEAD = """# Operators

Every form of attention that the specification knows: its formula, shapes, parameters and source, the names it goes
by elsewhere, how it is called in each framework, and the porting pitfalls.

`attention-parity operators` prints this. Shapes are named by axes; an axis with `?` may be left out. `True` in a mask
means "may attend".

Every call checks its arguments before any arithmetic: an array that does not fit the operator, the layer's parameters
or the other arrays is a `ShapeError` or `DtypeError`, a mask that is not boolean a `MaskError`, an option outside its
domain or without an effect an `OptionError`, and a token id outside the vocabulary a `TokenError`. Lengths out of range
are clipped; lengths and mask combine by logical and. A dropout mask holds 0 or 1/(1 - rate), by which what is dropped
is multiplied.

## How it is called

Names, arguments and their order are the same in all four backends. What a framework's users expect beside them comes
last, by keyword:
"""


def head() -> Iterator[str]:
    """What holds for all operators: how they are called, and the pitfalls of every decoder."""
    yield HEAD
    yield "| backend | import | a layer with parameters also takes | keywords of that framework |"
    yield "|---|---|---|---|"
    for name in FRAMEWORKS:
        requirements = read_requirements(f"backends.{name}")
        keywords = ", ".join(f"`{keyword}`" for keyword in requirements.keywords) if requirements else ""
        yield f"| {name} | `{IMPORTS[name]}` | `{idiom_of(name).example}` | {keywords} |"
    yield ""
    yield "## Porting pitfalls of every decoder"
    yield ""
    yield from (f"- {sentence}" for sentence in DECODING)


def _contents() -> Iterator[str]:
    for file, title in TITLES.items():
        links = ", ".join(f"[{entry.name}](#{entry.name.lower()})" for entry in entries(file))
        yield f"- {title}: {links}"


def _file(file: str) -> Iterator[str]:
    yield ""
    yield f"## {TITLES[file]}"
    for entry in entries(file):
        yield from ("", f"### {entry.name}", "", entry.summary, "")
        yield "    " + "\n    ".join(part.strip() for part in entry.formula.split(";  "))
        yield ""
        yield from details(entry)


def details(entry: Entry) -> Iterator[str]:
    """What follows the formula: notes, source, other names, calls, arrays, options and pitfalls."""
    porting = PORTING.get(entry.name, Porting(()))
    yield from (entry.notes, "") if entry.notes else ()
    yield f"- **Source**: {entry.source}"
    yield f"- **Also called**: {', '.join(porting.also)}"
    yield from _calls(entry)
    yield from _options(entry)
    if isinstance(entry, Layer):
        yield from _parameters(entry)
        yield from _methods(entry)
    else:
        yield from _tensors("takes", entry.inputs)
        yield from _tensors("gives", entry.outputs)
    if porting.pitfalls:
        yield ""
        yield "Porting pitfalls:"
        yield ""
        yield from (f"- {sentence}" for sentence in porting.pitfalls)


def _calls(entry: Entry) -> Iterator[str]:
    """The call, with shared arguments and with those of each framework."""
    if isinstance(entry, Operator):
        yield f"- **Call**, in each backend: `attention.{entry.name}({entry.signature})`"
        return
    yield f"- **Constructor**: `{entry.name}({entry.signature})`"
    for name in FRAMEWORKS:
        yield f"- **{name}**: {'; '.join(f'`{line}`' for line in example(entry, name))}"


def call_of(operator: Operator) -> str:
    """The call of a function with its required arguments."""
    given = [option.name for option in operator.options if option.default is None and not option.keyword_only]
    given += [tensor.name for tensor in operator.tensors if not tensor.optional or tensor is operator.tensors[0]]
    given += [
        f"{option.name}={option.name}" for option in operator.options if option.keyword_only and not option.default
    ]
    results = ", ".join(tensor.name for tensor in operator.outputs)
    return f"{results} = attention.{operator.name}({', '.join(given)})"


def example(layer: Layer, framework: str) -> tuple[str, str]:
    """The construction of a layer with its required arguments, and its call."""
    given = [option.name for option in layer.options if option.default is None]
    required = idiom_of(framework).required
    given += [required] if layer.trainable and required else []
    call = layer.method("call")
    # A decoder starts with the encoder's state unless it is made to start otherwise.
    given_too = {"state"} if FILE_OF[layer.name] == "decoders" else set()
    needed = ", ".join(tensor.name for tensor in call.tensors if not tensor.optional or tensor.name in given_too)
    results = ", ".join(dict.fromkeys(tensor.name.partition(".")[0] for tensor in call.outputs))
    return f"layer = attention.{layer.name}({', '.join(given)})", f"{results} = layer({needed})"


def _options(entry: Entry) -> Iterator[str]:
    if not entry.options:
        return
    yield ""
    yield "| argument | meaning | default |"
    yield "|---|---|---|"
    for option in entry.options:
        yield f"| `{option.name}` | {_cell(_meaning(option))} | {_default(option)} |"


def _meaning(option: Option) -> str:
    choices = f": {', '.join(f'`{choice}`' for choice in option.choices)}" if option.choices else ""
    return option.meaning + choices


def _default(option: Option) -> str:
    return "needed" if option.default is None else f"`{option.default}`"


def _parameters(layer: Layer) -> Iterator[str]:
    yield ""
    if not layer.trainable:
        yield "It has no parameters."
        return
    yield "| canonical parameter | shape | meaning |"
    yield "|---|---|---|"
    for parameter in layer.parameters:
        axes = ", ".join(parameter.axes) + ("," if len(parameter.axes) == 1 else "")
        yield f"| `{parameter.name}` | ({axes}) | {parameter.meaning} |"
    for name, what in layer.parts.items():
        yield f"| `{name}.*` | | {what} |"


def _methods(layer: Layer) -> Iterator[str]:
    """The call with its arrays, and the signatures of the other methods, which share them."""
    call = layer.method("call")
    yield from _tensors("takes", call.inputs)
    yield from _tensors("gives", call.outputs)
    yield ""
    for method in layer.methods:
        name = method.name.partition(".")[2]
        words = f"{method.summary} {method.notes}".strip()
        yield f"- `{'layer' if name == 'call' else f'layer.{name}'}({_short_signature(method)})`: {words}"
        for option in method.options:
            yield f"    - `{option.name}`: {_meaning(option)}; {_default(option)}"


def _short_signature(method: Operator) -> str:
    """The signature, with a memory and a state as one argument each."""
    signature = method.signature.replace("memory.keys, memory.values, memory.mask=None", "memory")
    for state in ("state.rnn, state.fed, state.position", "state.keys, state.values, state.position"):
        signature = signature.replace(state, "state")
    return signature


def _tensors(verb: str, tensors: Sequence[Tensor]) -> Iterator[str]:
    if not tensors:
        return
    yield ""
    yield f"| {verb} | shape | meaning |"
    yield "|---|---|---|"
    for tensor in tensors:
        kind = "" if tensor.kind == "floating" else f", {tensor.kind}"
        broadcast = ", or 1 for each axis" if tensor.broadcast else ""
        axes = f"({', '.join(tensor.axes)}{',' if len(tensor.axes) == 1 else ''})"
        axes = f"{tensor.layout_text}, or one for all" if () in tensor.layouts[:-1] else axes
        optional = " (may be left out)" if tensor.optional and verb == "takes" else ""
        yield f"| `{tensor.name}`{optional} | {axes}{broadcast}{kind} | {_cell(tensor.meaning)} |"


def _cell(text: str) -> str:
    """Escape text for a table cell."""
    return text.replace("|", "\\|")
