"""Every error message, worded once from shapes and dtype names: the same in every backend, before any arithmetic."""

from __future__ import annotations

import math
import operator as python_operator
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from attention_core.specification import DTYPES, Layer, Operator, Option, Sizes, Tensor


class AttentionError(ValueError):
    """Base class of the errors that this project raises."""


class ShapeError(AttentionError):
    """The number of axes or a size of an array does not fit the rest of the call."""


class DtypeError(AttentionError):
    """An array has the wrong dtype."""


class MaskError(DtypeError):
    """A mask is not boolean."""


class OptionError(AttentionError):
    """An argument other than an array is outside its domain."""


class TokenError(AttentionError):
    """A token id is outside the vocabulary."""


class ParameterError(AttentionError):
    """Canonical arrays do not fit a layer."""


ADVICE = {
    "batch": "All arguments share one batch size.",
    "heads": "Split queries, keys and values into the same heads, and give a mask an axis for them.",
    "queries": "Give one row of the mask, of the scores and of the lengths for each query.",
    "keys": "Give one value, and one column of the mask, for each key.",
    "features": "Project one of the two, or use AdditiveAttention, whose keys may have another size.",
    "the layer's features": "Make the layer with the features of the inputs.",
    "hidden_size": "Project both to the same hidden size, or make the layer with this one.",
    "query_size": "Make the layer with the query_size of the queries.",
    "key_size": "Make the layer with the key_size of the keys.",
    "memory_size": "Make the decoder with memory_size, the size of the encoder's outputs.",
    "input_size": "Make the layer with the input_size of the inputs.",
    "num_layers": "Give one state for each recurrent layer: decoder and encoder have the same num_layers.",
    "num_layers - 1": "Give one mask for each recurrent layer but the top one.",
    "earlier": "Give every mask one row for each query, or one row for all.",
    "steps": "Give every step its own row, or one row for all steps.",
    "weights's steps": "Give the weights of self-attention, whose queries and keys are the same steps.",
    "positions": "Make the layer with a position for each key.",
    "value_size": "Make the layer with the value_size of the values.",
    "state_size": "A state holds hidden_size numbers for each direction, and an LSTM's as many again for its cells.",
    "output_size": "Outputs and their dropout mask have hidden_size features for each direction.",
    "both_outputs": "A bridge takes the outputs of a bidirectional encoder: 2 hidden_size features.",
    "both_states": "A bridge takes the state of a bidirectional encoder, with the same hidden_size and cell.",
    **dict.fromkeys(
        ("height", "width", "channels"),
        "Give images as (batch, height, width, channels), or make the layer with these sizes.",
    ),
    "one": "Give a mask with one row, which is the same for every query: (batch, 1, keys).",
}

HIDING = ("key_padding_mask",)
"""Masks in which True means 'hidden'."""

NUMBERS = ("valid_lens", "offset", "position")
"""Integer arguments that may be lists, or a number where all sequences may share one."""

NOT_CAST = {
    "additive_mask": "A mask of True and False, or of 1 and 0, is not additive: after a cast it would hide nothing."
}
"""Advice for a wrong dtype where a cast would be a mistake."""


def dtype_name(dtype: Any) -> str:
    """The plain name of a dtype or its class: "float32", also where it is printed behind the name of a module."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    return str(name).removesuffix("_") if name else str(dtype).rpartition(".")[2]


def check(
    operator: Operator,
    sizes: Sizes | None = None,
    dtype: Any = None,
    castable: Collection[str] = (),
    /,
    **arguments: Any,
) -> dict[str, int]:
    """Refuse arguments that do not fit the operator or each other; return the size of every axis.

    arguments are the operator's by name: options, and arrays, which are anything with `shape` and `dtype`, or None
    where they are optional; `memory` represents its fields, and NUMBERS may be lists. sizes and dtype are those of the
    layer, if any. A size or a rank that is unknown while a framework traces (None) fits anything. castable are floating
    types that may be mixed, since the framework was asked to cast them.

    Raises: OptionError, ShapeError, DtypeError, MaskError.
    """
    for option in operator.options:
        if option.name in arguments:
            _check_option(operator.title, option, arguments[option.name])
    present = _present(operator, arguments)
    _check_dtypes(operator, present, dtype, castable)
    fixed = sizes or {}
    axes = _bind_axes(operator, fixed, {name: _shape(array) for name, array in present.items()})
    known = {**fixed, **arguments}
    for rule in operator.rules:
        rule(operator.title, known, axes)
    return axes


def check_options(target: Operator | Layer, **options: Any) -> dict[str, Any]:
    """Refuse options outside their domain; return a layer's completed sizes.

    Raises: OptionError.
    """
    title = target.title if isinstance(target, Operator) else target.name
    for option in target.options:
        if option.name in options:
            _check_option(title, option, options[option.name])
            if option.type == "int" and options[option.name] is not None:
                options[option.name] = python_operator.index(options[option.name])
    return target.sizes(options) if isinstance(target, Layer) else {}


def check_unused(title: str, name: str, value: Any, why: str) -> None:
    """Refuse an option that would be ignored.

    Raises: OptionError.
    """
    if value is not None:
        received = "given" if hasattr(value, "shape") else repr(value)
        raise OptionError(f"{title}: {name} is {received}, expected None: {why}.")


def check_needed(title: str, name: str, value: Any, why: str) -> None:
    """Refuse None for an option that is required here.

    Raises: OptionError.
    """
    if value is None:
        raise OptionError(f"{title}: {name} is None, expected a value: {why}.")


def check_available(title: str, dtype: str, missing: str, why: str) -> None:
    """Refuse the floating type that the framework is missing.

    Raises: OptionError.
    """
    if dtype == missing:
        others = ", ".join(repr(name) for name in DTYPES["floating"] if name != missing)
        raise OptionError(f"{title}: dtype is {dtype!r}, expected one of {others}: {why}.")


PATHS = ("blocked", "plain")
"""How a backend computes a function that has a fast path: in blocks, without its largest array, or by the formula."""


def check_path(path: Any) -> None:
    """Refuse an unknown path; None selects the path by sizes.

    Raises: OptionError.
    """
    if path is not None and path not in PATHS:
        raise OptionError(f"set_path: path is {path!r}, expected {' or '.join(map(repr, PATHS))}, or None.")


def check_tokens(title: str, name: str, lowest: int, highest: int, vocab_size: int) -> None:
    """Refuse token ids outside the vocabulary.

    Raises: TokenError.
    """
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise TokenError(
            f"{title}: {name} holds the id {wrong}, expected 0 to {vocab_size - 1} (vocab_size is {vocab_size}). "
            "Map unknown tokens to an id of the vocabulary, and make the layer as large as the vocabulary."
        )


def check_parameters(layer: Layer, sizes: Sizes, dtype: Any, arrays: Mapping[str, Any]) -> None:
    """Refuse canonical arrays that are missing, unknown, or of another shape or dtype than the layer's.

    Raises: ParameterError.
    """
    _check_arrays(layer.name, "this layer's", _expected_arrays(layer, sizes, dtype), arrays)


def check_state(layer: Layer, sizes: Sizes, dtype: Any, moments: Sequence[str], arrays: Mapping[str, Any]) -> None:
    """Refuse a state that is not the optimiser's for the layer: its step, and its moments of each canonical array.

    Raises: ParameterError.
    """
    parameters = _expected_arrays(layer, sizes, dtype).items()
    expected = {f"{moment}.{name}": array for moment in moments for name, array in parameters}
    _check_arrays("Trainer", "this optimiser's for this model", {"step": ((), "int64"), **expected}, arrays)


def _expected_arrays(layer: Layer, sizes: Sizes, dtype: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (shape, dtype_name(dtype)) for name, shape in layer.shapes(sizes).items()}


def _check_arrays(
    title: str, whose: str, expected: Mapping[str, tuple[tuple[int, ...], str]], arrays: Mapping[str, Any]
) -> None:
    """Refuse arrays whose names, shapes or dtypes differ from the expected ones."""
    missing = [name for name in expected if name not in arrays]
    unknown = [name for name in arrays if name not in expected]
    if missing or unknown:
        difference = "; ".join(
            f"{word}: {', '.join(names)}" for word, names in (("missing", missing), ("unknown", unknown)) if names
        )
        raise ParameterError(f"{title}: the arrays are not {whose} ({difference}). It has {', '.join(expected)}.")
    for name, (shape, dtype) in expected.items():
        actual = tuple(arrays[name].shape)
        if actual != shape:
            fits = actual[::-1] == shape
            hint = " The transpose would fit: canonical matrices are (outputs, inputs)." if fits else ""
            raise ParameterError(f"{title}: {name} has shape {actual}, expected {shape}.{hint}")
        kind = dtype_name(arrays[name].dtype)
        if kind != dtype:
            raise ParameterError(
                f"{title}: {name} is {kind}, expected {dtype}. Nothing is cast silently: cast the arrays first, or "
                "make the layer with their dtype."
            )


# ------------------------------------------------------------------------------------------------ one check each


def _present(operator: Operator, arrays: Mapping[str, Any]) -> dict[str, Any]:
    present = {}
    for tensor in operator.inputs:
        owner, _, field = tensor.name.partition(".")
        array = getattr(arrays[owner], field) if field else arrays.get(owner)
        if array is None and not tensor.optional:
            raise ShapeError(f"{operator.title}: {tensor.name} is None, expected {tensor.layout_text}.")
        if array is None:
            continue
        if tensor.name in NUMBERS and (
            isinstance(array, (list, tuple)) or (type(array) is int and () in tensor.layouts)
        ):
            array = _numbers(operator, tensor, array)
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            whole = "a whole number or " if () in tensor.layouts else ""
            raise DtypeError(
                f"{operator.title}: {tensor.name} is a {type(array).__name__}, expected {whole}an array "
                f"{tensor.layout_text}. Convert it to an array of the framework first."
            )
        present[tensor.name] = array
    return present


def _numbers(operator: Operator, tensor: Tensor, numbers: int | Sequence[Any]) -> SimpleNamespace:
    """The shape and dtype of a number, of a list of them, or of lists with one for each query."""
    if isinstance(numbers, int):
        return SimpleNamespace(shape=(), dtype="int64")
    rows = numbers if any(isinstance(row, (list, tuple)) for row in numbers) else [numbers]
    integers = ("int", *DTYPES["integer"])
    whole = all(isinstance(row, (list, tuple)) and all(dtype_name(type(n)) in integers for n in row) for row in rows)
    if not whole or len({len(row) for row in rows}) > 1:
        each = ", or a list of one for each query, as long for every sequence" if len(tensor.axes) > 1 else ""
        raise ShapeError(
            f"{operator.title}: {tensor.name} is a list, expected one whole number for each sequence in it{each}."
        )
    shape = (len(numbers),) if rows[0] is numbers else (len(numbers), len(rows[0]))
    return SimpleNamespace(shape=shape, dtype="int64")


def _shape(array: Any) -> tuple[int | None, ...] | None:
    try:
        return tuple(array.shape)
    except ValueError:  # the rank is unknown while a framework traces
        return None


def _check_dtypes(operator: Operator, present: Mapping[str, Any], fixed: Any, castable: Collection[str]) -> None:
    first, expected = "the layer", None if fixed is None else dtype_name(fixed)
    for tensor in operator.inputs:
        array = present.get(tensor.name)
        if array is None:
            continue
        dtype = dtype_name(array.dtype)
        if dtype not in DTYPES[tensor.kind]:
            raise _wrong_kind(operator, tensor, dtype)
        if tensor.kind == "floating":
            if expected is None:
                first, expected = tensor.name, dtype
            elif dtype != expected and not {dtype, expected} <= {*castable}:
                raise DtypeError(
                    f"{operator.title}: {tensor.name} is {dtype} but {first} is {expected}. "
                    "Nothing is cast silently: cast one of the two."
                )


def _wrong_kind(operator: Operator, tensor: Tensor, dtype: str) -> DtypeError:
    start = f"{operator.title}: {tensor.name} is {dtype}, expected"
    if tensor.kind == "boolean":
        hiding = tensor.name in HIDING
        meaning, opened, hidden = ("hidden", "==", "!=") if hiding else ("may attend", "!=", "==")
        return MaskError(
            f"{start} bool. True means '{meaning}': compare first, mask {opened} 0 where 1 stands for an open key, "
            f"mask {hidden} 0 where 1 stands for a hidden one."
        )
    if tensor.kind == "integer":
        return DtypeError(f"{start} an integer type. Cast it to int32 first; fractions have no meaning here.")
    advice = NOT_CAST.get(tensor.name, "Cast it first.")
    return DtypeError(f"{start} a floating type, one of {', '.join(DTYPES['floating'])}. {advice}")


def _bind_axes(operator: Operator, fixed: Sizes, shapes: Mapping[str, tuple[int | None, ...] | None]) -> dict[str, int]:
    bound = {axis: (size, "the layer") for axis, size in fixed.items() if isinstance(size, int)}
    with_heads: dict[bool, Tensor] = {}
    for tensor in operator.inputs:
        shape = shapes.get(tensor.name)
        if shape is None:
            continue
        layout = next((layout for layout in tensor.layouts if len(layout) == len(shape)), None)
        if layout is None:
            raise ShapeError(
                f"{operator.title}: {tensor.name} has {len(shape)} {'axis' if len(shape) == 1 else 'axes'}, expected "
                f"{tensor.layout_text}. {_missing_axes(tensor, shape, bound, True in with_heads)}{list_shapes(shapes)}"
            )
        if "batch" in layout and {"heads?", "key_heads?"} & set(tensor.axes):
            with_heads.setdefault(len(layout) == len(tensor.axes), tensor)
        for axis, size in zip(layout, shape, strict=True):
            if size is None or (tensor.broadcast and size == 1):
                continue
            expected, owner = bound.setdefault(axis, (size, tensor.name))
            if size != expected:
                sizes = f"{size} in {tensor.name} but {expected} in {owner}"
                if owner == tensor.name:
                    sizes = f"both {expected} and {size} in {owner}"
                raise ShapeError(
                    f"{operator.title}: axis '{axis}' is {sizes}. {_advice(axis, owner)} {list_shapes(shapes)}"
                )
    if len(with_heads) == 2 and not any("heads" in tensor.axes for tensor in operator.inputs):
        split, whole = with_heads[True].name, with_heads[False].name
        cure = f"Give {whole}[:, None], which is the same for every head." if with_heads[False].broadcast else None
        raise ShapeError(
            f"{operator.title}: axis 'heads' is in {split} but not in {whole}. {cure or ADVICE['heads']} "
            f"{list_shapes(shapes)}"
        )
    return {axis: size for axis, (size, _) in bound.items()}


def _missing_axes(
    tensor: Tensor, shape: Sequence[int | None], bound: Mapping[str, tuple[int, str]], has_heads: bool
) -> str:
    """How to give a mask of two axes the others, by what the two may be."""
    layout = next((layout for layout in tensor.layouts if len(layout) == 3), None)
    if layout is None or len(shape) != 2 or tensor.kind != "boolean":
        return ""
    batch, queries, keys = layout
    heads = ", None" if has_heads else ""
    cures = {(batch, keys): f"{tensor.name}[:, None{heads}, :]", (queries, keys): f"{tensor.name}[None{heads}]"}

    def fits(axes: tuple[str, ...]) -> bool:
        return all(size in (None, 1, bound.get(axis, (size,))[0]) for axis, size in zip(axes, shape, strict=True))

    ways = [f"{cure} if its axes are ({', '.join(axes)})" for axes, cure in cures.items() if fits(axes)]
    return f"Give {' or '.join(ways)}. " if ways else ""


def _advice(axis: str, owner: str) -> str:
    return ADVICE.get(f"{owner}'s {axis}") or ADVICE.get(axis, "Give both the same size.")


def list_shapes(shapes: Mapping[str, tuple[int | None, ...] | None]) -> str:
    """The shapes of a call, as the last sentence of an error message."""
    return f"Shapes: {', '.join(f'{name}={shape}' for name, shape in shapes.items() if shape is not None)}."


def _check_option(title: str, option: Option, value: Any) -> None:
    if value is None and option.may_be_none:
        return
    if option.type == "int":
        lowest = {"count": 0, "token": 0, "even": 2}.get(option.domain, 1)
        try:
            fits = not isinstance(value, bool) and python_operator.index(value) >= lowest
        except TypeError:
            fits = False
        expected = f"a whole number of at least {lowest}"
        if option.domain == "even":
            fits, expected = fits and value % 2 == 0, "an even number of at least 2"
    elif option.type == "bool":
        fits, expected = isinstance(value, bool), "True or False"
    elif option.type == "function":
        fits, expected = callable(value), "a function"
    elif option.type == "indices":
        fits, expected = _are_indices(value), "a list of whole numbers of at least 0"
    elif option.type == "str":
        fits, expected = value in option.choices, f"one of {', '.join(map(repr, option.choices))}"
    elif option.domain == "positive":
        fits = _is_number(value) and 0.0 < value < math.inf
        expected = "a finite number above 0"
    elif option.domain == "rate":
        fits = _is_number(value) and 0.0 <= value < 1.0
        expected = "a rate of at least 0 and less than 1"
    else:
        fits = _is_number(value) and math.isfinite(value)
        expected = "a finite number"
    if not fits:
        raise OptionError(f"{title}: {option.name} is {value!r}, expected {expected}: {option.meaning}.")


def _are_indices(value: Any) -> bool:
    if isinstance(value, str) or not hasattr(value, "__len__"):
        return False
    try:
        return all(not isinstance(one, bool) and python_operator.index(one) >= 0 for one in value)
    except TypeError:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
