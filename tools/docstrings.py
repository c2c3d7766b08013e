"""Write the docstrings of the reference and of every backend from the specification: `python -m tools.docstrings`.

In a backend a docstring has the formula, a line for each argument, the results, the exceptions that it alone raises,
and, at a function or class, an example; the exceptions of all are in the package's docstring. In the reference it has
the summary, the formula and the notes. A last paragraph that begins with "In PyTorch:" (and so on) describes what is
particular to a framework; it is left unchanged.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from attention_core.operators import FILE_OF, LAYERS, OF_FILES
from attention_core.specification import Layer, Operator, Option, Rule, Tensor
from backends import FRAMEWORKS, idiom_of
from backends.requirements import Idiom
from parity_tests.reports.operators_page import call_of, example

Definition = ast.FunctionDef | ast.ClassDef

ROOT = Path(__file__).parents[1]
WIDTH = 120
REFERENCE = "reference"
ROOMS = {REFERENCE: "attention_core/reference", **{framework: f"backends/{framework}" for framework in FRAMEWORKS}}
"""Where the specification is implemented: the folder of the reference and of each backend."""
KEYWORDS = {
    "dtype": "floating type of the parameters",
    "param_dtype": "floating type of the parameters",
    "device": "where to allocate",
    "rngs": "streams of random numbers, for the first values of the parameters and for dropout",
    "name": "the layer's name in Keras",
    "prefix": "prefix of the parameters' names in Gluon",
    "params": "a ParameterDict whose parameters are shared",
    "training": "whether dropout is active; by default the mode of the enclosing layer",
    "ctx": "where to allocate",
}
"""The keywords that a framework's users expect, by name."""
BESIDE_PARAM_DTYPE = {
    "dtype": "floating type to which inputs and parameters are cast; by default no input of another one is accepted",
}
"""The meaning of a keyword beside param_dtype, since Flax has both."""
GIVEN = {"memory": "as `prepare` returns it", "state": "as `start` returns it"}
RETURNED = {
    "memory": "a `Memory`, which `attend` and `step` take",
    "state": "what the next `step` takes",
    "layer": "the smaller layer",
}
"""Arguments with fields, the methods that return them, and those that accept them."""
GENERAL = {
    "Attention.attend": "context, weights = attention_pooling(score(queries, memory.keys), memory.values)",
    "Attention.call": "context, weights = attention_pooling(score(queries, project(keys)), values)",
    "Encoder.call": "outputs, state = rnn(embedding[tokens])",
    "Recurrent.step": "state'[l] = cell(x, state[l]), x = inputs for l = 0, else dropout_mask[l - 1] output'[l - 1]",
}
"""The formulas of inherited methods, where each layer has its own."""


def docstrings(room: str, file: str) -> dict[str, str]:
    """The docstring of each function, class and method ("Class.method") that the specification knows, for a file."""
    tree = ast.parse(path_of(room, file).read_text(encoding="utf-8"))
    made = {node.name: node for node in tree.body if isinstance(node, Definition)}
    texts: dict[str, str] = {}
    for entry in OF_FILES.get(file, ()):
        node = made.get(entry.name)
        if node is None:  # not written yet, which a test of the structure reports
            continue
        if room == REFERENCE:
            texts[entry.name] = _text(entry.summary, entry.formula, entry.notes)
        elif isinstance(entry, Operator):
            texts[entry.name] = of_function(entry, _keywords(node, entry))
        else:
            texts[entry.name] = of_class(entry, _keywords(_method(node, "__init__", made), entry), room)
    for name, node in made.items():
        if isinstance(node, ast.ClassDef):
            for method, operators in _inherited_operators(name, made, file, room).items():
                definition = _method(node, method, {})
                if definition is not None and operators:
                    text = of_method(name, operators, _keywords(definition, operators[0]), room)
                    texts[f"{name}.{method}"] = text
    return texts


def of_function(operator: Operator, keywords: Sequence[str]) -> str:
    """The docstring of a function."""
    blocks = [*_signature(operator, keywords), f"Source: {operator.source}", _block("Example", [call_of(operator)])]
    return _text(operator.summary, operator.formula, operator.notes, *blocks)


def of_class(layer: Layer, keywords: Sequence[str], room: str) -> str:
    """The docstring of a layer: the arguments of its constructor, and an example."""
    parameters = [f"{parameter.name}: {_axes(parameter.axes)}, {parameter.meaning}" for parameter in layer.parameters]
    parameters += [f"{name}.*: {what}" for name, what in layer.parts.items()]
    meanings = {**KEYWORDS, **(BESIDE_PARAM_DTYPE if "param_dtype" in keywords else {})}
    options = [_option(option) for option in layer.options] + [f"{name}: {meanings[name]}" for name in keywords]
    blocks = [_block("Args", options), _block("Parameters", parameters)]
    blocks += [f"Source: {layer.source}", _block("Example", example(layer, room))]
    return _text(layer.summary, layer.formula, layer.notes, *blocks)


def of_method(name: str, operators: Sequence[Operator], keywords: Sequence[str], room: str) -> str:
    """The docstring of a method, which the layers of these operators have in common."""
    first = operators[0]
    formulas = {operator.formula for operator in operators}
    formula = first.formula if len(formulas) == 1 else GENERAL.get(f"{name}.{first.name.partition('.')[2]}", "")
    joined = replace(
        first,
        tensors=_join([operator.tensors for operator in operators]),
        keyword_tensors=_join([operator.keyword_tensors for operator in operators]),
        outputs=_join([operator.outputs for operator in operators]),
        rules=tuple(dict.fromkeys(rule for operator in operators for rule in operator.rules)),
    )
    return _text(first.summary, formula, first.notes, *([] if room == REFERENCE else _signature(joined, keywords)))


def rewrite(source: str, texts: Mapping[str, str], title: str) -> str:
    """Return the source of a file with these docstrings; the last paragraph about the framework is kept."""
    lines = source.split("\n")
    for name, node in sorted(_definitions(ast.parse(source)), key=lambda pair: -pair[1].lineno):
        if name not in texts:
            continue
        first = node.body[0]
        old = ast.get_docstring(node)
        indent = " " * first.col_offset
        kept = [text for text in (old or "").split("\n\n") if text.startswith(f"In {title}:")]
        paragraphs = [texts[name], *kept]
        block = textwrap.indent('"""' + "\n\n".join(_wrap(paragraphs, WIDTH - first.col_offset)), indent)
        end = "" if "\n" not in block and len(block) <= WIDTH - 3 else "\n" + indent
        new = (block + end + '"""').split("\n")
        if old is None:
            lines[first.lineno - 1 : first.lineno - 1] = new
        else:
            lines[first.lineno - 1 : first.end_lineno] = new
    return "\n".join(line.rstrip() for line in lines)


def existing(source: str) -> dict[str, str]:
    """Return the docstrings that a file's functions, classes and methods have."""
    found = {name: ast.get_docstring(node) for name, node in _definitions(ast.parse(source))}
    return {name: text for name, text in found.items() if text is not None}


def pages() -> Iterator[tuple[Path, str]]:
    """Every file with generated docstrings, with its expected content."""
    for room in ROOMS:
        for file in OF_FILES:
            path = path_of(room, file)
            source = path.read_text(encoding="utf-8")
            yield path, rewrite(source, docstrings(room, file), idiom(room).title)


def idiom(room: str) -> Idiom:
    """How code of the reference or of a backend is written."""
    return Idiom(title="NumPy") if room == REFERENCE else idiom_of(room)


def path_of(room: str, file: str) -> Path:
    """The path of a file of the reference or of a backend."""
    return ROOT / ROOMS[room] / f"{file}.py"


# ------------------------------------------------------------------------------------------------ parts of a docstring


def _text(summary: str, formula: str, notes: str, *blocks: str) -> str:
    lines = "\n".join(part.strip() for part in formula.split(";  "))
    return "\n\n".join(filter(None, [summary, lines, notes, "\n".join(filter(None, blocks))]))


def _signature(operator: Operator, keywords: Sequence[str]) -> list[str]:
    arguments = [_option(option) for option in operator.options if not option.keyword_only]
    arguments += _tensors(operator.tensors, GIVEN)
    arguments += [_option(option) for option in operator.options if option.keyword_only]
    arguments += _tensors(operator.keyword_tensors, GIVEN)
    arguments += [f"{name}: {KEYWORDS[name]}" for name in keywords]
    returned = _tensors(operator.outputs, RETURNED, operator.options)
    return [_block("Args", arguments), _block("Returns", returned), _block("Raises", map(refusal, operator.rules))]


def _block(title: str, lines: Iterable[str]) -> str:
    return "\n".join([f"{title}:", *(f"    {line}" for line in listed)]) if (listed := list(lines)) else ""


def _option(option: Option) -> str:
    choices = f": {', '.join(map(repr, option.choices))}" if option.choices else ""
    default = "" if option.default is None else f" (default {option.default})"
    return f"{option.name}{default}: {option.meaning}{choices}"


def _tensors(tensors: Iterable[Tensor], made: Mapping[str, str], options: Sequence[Option] = ()) -> list[str]:
    """A line for each array; made describes the origin or use of arguments with fields."""
    unless = {option.name.removeprefix("need_"): option.name for option in options if option.name.startswith("need_")}
    lines: dict[str, str] = {}
    for tensor in tensors:
        owner, _, field = tensor.name.partition(".")
        if field:
            lines[owner] = f"{owner}: {made[owner]}"
            continue
        kind = {"floating": "", "integer": "integers ", "boolean": "booleans "}[tensor.kind]
        broadcast = ", broadcast" if tensor.broadcast else ""
        broadcast += {"valid_lens": ", or a list", "offset": ", a list, or one number"}.get(tensor.name, "")
        default = " (default None)" if tensor.optional and made is GIVEN else ""
        none = f"; None without {unless[tensor.name]}" if tensor.name in unless else ""
        lines[tensor.name] = f"{tensor.name}{default}: {kind}{_axes(tensor.axes)}{broadcast}; {tensor.meaning}{none}"
    return list(lines.values())


def _axes(axes: Sequence[str]) -> str:
    if len(axes) == 1:
        return f"({axes[0].removesuffix('?')},)"
    names = (f"[{axis.replace('?', '')}]" if axis.endswith("?") else axis for axis in axes)
    return f"({', '.join(names)})"


def refusal(rule: Rule) -> str:
    """What a rule refuses, and by which error, in the words of its own docstring."""
    what, _, error = inspect.cleandoc(rule.__doc__ or "").partition("\n\nRaises: ")
    return f"{error.strip('.')}: {what.removeprefix('Refuse ').strip('.')}"


def _join(alternatives: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Merge the tensors of several layers' methods: an axis has all names that it has in any of them."""
    joined = []
    for tensors in zip(*alternatives, strict=False):
        first = tensors[0]
        same = all(tensor.name == first.name and len(tensor.axes) == len(first.axes) for tensor in tensors)
        if same:
            axes = [" or ".join(dict.fromkeys(each)) for each in zip(*(tensor.axes for tensor in tensors), strict=True)]
            first = replace(first, axes=tuple(axes))
        elif first.name.partition(".")[0] in GIVEN:
            first = replace(first, name=first.name.partition(".")[0] + ".fields")
        joined.append(first)
    return tuple(joined)


# ------------------------------------------------------------------------------------------------ the source


def _definitions(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    for node in tree.body:
        if isinstance(node, Definition):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    yield f"{node.name}.{member.name}", member


def _method(node: Definition | None, name: str, classes: Mapping[str, Definition]) -> ast.FunctionDef | None:
    """A method of a class or of its base class."""
    if not isinstance(node, ast.ClassDef):
        return None
    defined = [member for member in node.body if isinstance(member, ast.FunctionDef) and member.name == name]
    if defined:
        return defined[0]
    bases = (_method(classes.get(base), name, classes) for base in bases_of(node))
    return next(filter(None, bases), None)


def _inherited_operators(name: str, made: Mapping[str, Definition], file: str, room: str) -> dict[str, list[Operator]]:
    """The operators of each method of a class: those of its layer, or of derived layers."""
    operators: dict[str, list[Operator]] = {}
    for layer in (layer for layer in LAYERS if FILE_OF[layer.name] == file and layer.name in made):
        derived = name in (layer.name, *bases_of(made[layer.name]))
        for operator in layer.methods if derived else ():
            method = operator.name.partition(".")[2]
            method = idiom(room).call if method == "call" else method
            overrides = layer.name != name and _method(made[layer.name], method, {}) is not None
            if not overrides:
                operators.setdefault(method, []).append(operator)
    return operators


def bases_of(node: Definition) -> list[str]:
    """The classes that a class derives from, by name: Decoder of Decoder[State]."""
    return [ast.unparse(base).partition("[")[0] for base in node.bases] if isinstance(node, ast.ClassDef) else []


def _keywords(node: Definition | None, entry: Operator | Layer) -> list[str]:
    """The framework's own keyword arguments, which are not in the specification."""
    if not isinstance(node, ast.FunctionDef):
        return []
    known = {option.name for option in entry.options}
    known |= {tensor.name for tensor in entry.inputs} if isinstance(entry, Operator) else set()
    return [argument.arg for argument in node.args.kwonlyargs if argument.arg not in known]


def _wrap(paragraphs: Iterable[str], width: int) -> Iterator[str]:
    """Wrap each paragraph to this width, with a hanging indent of four."""
    for paragraph in paragraphs:
        lines = []
        for line in paragraph.split("\n"):
            inner = line[: len(line) - len(line.lstrip())]
            more = inner + ("    " if inner else "")
            lines += textwrap.wrap(line, width, subsequent_indent=more, break_long_words=False) or [""]
        yield "\n".join(lines)


if __name__ == "__main__":
    for path, text in pages():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written     {path.relative_to(ROOT)}")
