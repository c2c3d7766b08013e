"""Conditions under which alone a mistake may show, derived from the specification: every call has a case for each.

They concern several arguments at once: which optional arrays are absent, pairs of options, axes that are equal, integer
types and the sizes beyond their range. `python -m tools.covering` searches the rows that meet them, which are in
`conditions.txt`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np

from attention_core.errors import AttentionError
from attention_core.operators import find
from attention_core.specification import INTEGER, Layer, Option, Tensor
from parity_tests.cases.covering import Call, equal_sizes, sharing
from parity_tests.cases.options import OF_POSITIONS, Pick, values_of
from parity_tests.format.case import Case, is_floating
from parity_tests.format.drawn import COUNTS, IDS, MOST, Drawn, called_of, inputs_of, is_size
from parity_tests.format.expected import computed_outputs, outputs

FURTHER = ("absence", "pairs", "equal axes", "integers", "all sizes", "views")
"""The dimensions of these conditions."""

WITH_GRADIENTS = ("absence", "equal axes", "views")
"""The dimensions whose rows have gradients where these are cheap."""

Holds = Callable[[Case], bool]
Aim = Callable[[Drawn, Pick], Drawn]


@dataclass(frozen=True)
class Condition:
    """What a case may meet: its dimension, its name, whether a case meets it, and a row changed so that it may."""

    dimension: str
    name: str
    holds: Holds
    aim: Aim


def conditions(call: Call) -> list[Condition]:
    """The conditions that some case of a call must meet."""
    impossible = [name for operators, name in IMPOSSIBLE if any(fnmatchcase(call.entry.name, one) for one in operators)]
    return [
        one
        for one in every_condition(call)
        if not any(fnmatchcase(one.name, name) for names in impossible for name in names)
    ]


def every_condition(call: Call) -> Iterator[Condition]:
    """Those that no case can meet, too; none of `extend`, `attend` and `start`, which are parts of other calls."""
    if call.method not in ("extend", "attend", "start"):
        yield from (*_absences(call), *_pairs(call))
    if call.method in ("", "call"):
        yield from (*_equal_axes(call), *_integers(call), *_all_sizes(call), *_views(call))


POSITIONED = ("TransformerEncoder", "TransformerDecoder", "TransformerTranslator")
IMPOSSIBLE: Mapping[tuple[tuple[str, ...], tuple[str, ...]], str] = {
    (("relative_b*",), ("*max_distance*_of_1", "*num_buckets*_of_1")): "there are at least two buckets, and a distance",
    (("KernelAttention", "NadarayaWatson"), ("width_and_learned*",)): "a learned width takes the place of a given one",
    (("LocalAttention",), ("offset_and_mode_predictive",)): "a predicted center needs no offset",
    (("HardAttention",), ("hidden_size_and_num_positions",)): "a score by location has no hidden layer",
    (("*Decoder",), ("attention_size_and_num_positions",)): "a score by location has no hidden layer",
    (("*Decoder",), ("state_and_initial_*",)): "the first state is given, or made",
    (("Bridge",), ("method_sum_and_output_size",)): "a sum has the size of its terms",
    (("*",), ("per_head_true_and_need_weights_false",)): "no weights are of no head",
    (
        ("MultiHeadAttention",),
        ("num_positions_and_softcap", "num_positions_and_rotary_*"),
    ): "they are of inner products",
    (POSITIONED, ("*rotary_layout_interleaved*",)): "this is the default of rotary positions",
    (POSITIONED, ("norm_pre_and_last_norm_true",)): "this is the default of that norm",
    (
        POSITIONED,
        ("num_positions_and_num_buckets", "num*_and_max_distance", "num_positions_and_rotary_*"),
    ): "one is chosen",
    (POSITIONED, ("num_buckets_and_rotary_*", "max_distance_and_rotary_*")): "one kind of positions is chosen",
    (
        ("Translator",),
        ("*bridge_project*", "*reads_both*", "*readout_dense*", "*_attentional*"),
    ): "these are the defaults",
    (("Translator",), ("cell_lstm_and_encoder_cell_lstm",)): "this is the default of the encoder's cell",
    (("Translator",), ("decoder_fixed_and_[snri]*", "decoder_luong_and_read*")): "another decoder has these options",
    (("Translator",), ("read*_and_input_feeding*", "num_positions_and_input_feeding_context")): "one decoder has one",
}
"""Conditions that no call meets: patterns of operators and of names, with the reason."""

UNVARIED: Mapping[str, tuple[str, Callable[[Call], bool]]] = {
    "coincidences": ("no two of its axes are listed", lambda call: not call.coincidences),
    "masks": ("it takes no mask", lambda call: not call.masks and not any(one.broadcast for one in call.inputs)),
    "layout": ("it takes no array", lambda call: not call.inputs),
    "state": ("it has no gradients", lambda call: not call.computes),
    "absence": ("nothing hides anything", lambda call: not {"valid_lens", "mask"} & {*call.masks}),
    "pairs": ("it takes at most one optional argument", lambda call: len({one.name for one in _factors(call)}) < 2),
    "equal axes": ("it has one axis", lambda call: not call.inputs),
    "integers": ("it takes no whole numbers", lambda call: all(one.kind != "integer" for one in call.inputs)),
    "all sizes": ("its sizes cost too much", lambda call: isinstance(call.entry, Layer)),
    "views": ("it shares no array, and takes no mask", lambda call: not sharing(call) and not _booleans(call)),
}
"""Dimensions that some operators do not have: the reason, and whether it is that of a call."""


# ------------------------------------------------------------------------------------------------ absence


def _has_empty_length(case: Case) -> bool:
    return bool((case.inputs["valid_lens"] <= 0).any()) and all(array.size for array in case.inputs.values())


def _has_empty_row(case: Case) -> bool:
    mask = case.inputs["mask"]
    return mask.shape[-1] > 0 and not mask.any(axis=-1).all()


def _has_hidden(case: Case) -> bool:
    return any(bool(np.isnan(array).any()) for array in case.inputs.values() if is_floating(array))


PROMISES: Mapping[str, tuple[str, Holds, str]] = {
    "length_of_0": ("valid_lens", _has_empty_length, ""),
    "fully_masked_row": ("mask", _has_empty_row, ""),
    "hidden_by_lengths": ("valid_lens", _has_hidden, "nan"),
    "hidden_by_mask": ("mask", _has_hidden, "nan"),
}
"""What is promised to those who pass an argument: that argument, whether a case shows it, and what is hidden."""


def _absences(call: Call) -> Iterator[Condition]:
    """For each promise: all other optional arrays absent, and each of them alone; dropout masks are absent together."""
    optional = [tensor.name for tensor in call.inputs if tensor.optional]
    dropout = tuple(name for name in optional if name.endswith("dropout_mask"))
    units = [*((name,) for name in optional if name not in dropout), *((dropout,) if dropout else ())]
    for promise, (hider, shows, hidden) in PROMISES.items():
        if hider not in optional or (hidden and not _hides(call, hider)):
            continue
        others = [unit for unit in units if unit != (hider,)]
        absent = {"alone": tuple(itertools.chain(*others))}
        absent |= {f"without_{unit[0]}": unit for unit in others if len(others) > 1 and call.method in ("", "call")}
        for name, left_out in absent.items():
            given = tuple(one for one in optional if one not in left_out)

            def holds(case: Case, given: Sequence[str] = given, shows: Holds = shows) -> bool:
                return {*optional} & {*case.inputs} == {*given} and shows(case)

            def aim(row: Drawn, pick: Pick, given: tuple[str, ...] = given, hidden: str = hidden) -> Drawn:
                return replace(row, given=given, lens="", hidden=hidden, layouts={}, shared=(), infinite=False)

            yield Condition("absence", f"{promise}_{name}", holds, aim)


def _hides(call: Call, hider: str) -> bool:
    """Whether an argument can hide numbers: not the mask of self-attention, in which unseen steps have outputs."""
    axes = [axis.removesuffix("?") for tensor in call.inputs for axis in tensor.axes]
    padded = "keys" if "keys" in axes else "steps"
    named = {tensor.name: tensor for tensor in call.inputs}
    return any(padded in named[name].axes for name in call.floating) and named[hider].axes.count(padded) < 2


# ------------------------------------------------------------------------------------------------ pairs

IN_TRAINING = ("dropout",)
"""Options that act in training alone: cases have dropout masks instead."""

MOST_VALUES = 4
"""The most values of an option of which each is paired; of a score, any but the default will do."""


@dataclass(frozen=True)
class Factor:
    """An optional array, or an option with a value other than its default: of the call, or of the constructor."""

    name: str
    kind: Literal["inputs", "options", "config"]
    option: Option | None = None
    value: bool | str | None = None

    @property
    def text(self) -> str:
        """Its name, and its value unless any will do."""
        return self.name if self.value is None else f"{self.name}_{self.value}".lower()

    def is_in(self, case: Case) -> bool:
        """Whether a case has it."""
        values: Mapping[str, Any] = getattr(case, self.kind)
        if self.option is None or self.name not in values:
            return self.name in values
        value = values[self.name]
        return bool(value != self.option.value if self.value is None else value == self.value)

    def aim(self, row: Drawn, pick: Pick) -> Drawn:
        """The row with it, and with what it needs to have an effect."""
        if self.option is None:
            return _with_array(row, self.name)
        sizes, options = {**row.sizes}, {**row.options}
        others = [value for value in values_of(self.option, row.sizes) if value != self.option.value]
        if is_size(self.option):
            sizes[self.name] = pick((2, 4, 6))
        else:
            options[self.name] = pick(others) if self.value is None else self.value
        for needed, values in NEEDED.items():
            if self.name in values and any(option.name == needed for option in find(row.operator).options):
                options[needed] = values[self.name]
        return replace(row, sizes={**sizes, **SIZED.get(self.name, {})}, options=options)


SIZED: Mapping[str, Mapping[str, int]] = {
    "num_key_heads": {"num_key_heads": 2, "num_heads": 4, "features": 16, "hidden_size": 16},
    "max_distance": {"num_buckets": 8, "max_distance": 8, "steps": 6},
}
"""Sizes at which an option has an effect."""
NEEDED: Mapping[str, Mapping[str, str]] = {
    "positions": OF_POSITIONS,
    "score": {"num_positions": "location"},
    "decoder": {"input_feeding": "luong"},
}
"""The value of an option that alone makes another one have an effect."""


def _with_array(row: Drawn, name: str) -> Drawn:
    """The row with an optional array."""
    optional = [tensor.name for tensor in inputs_of(find(row.operator), row.method) if tensor.optional]
    return replace(row, given=tuple(one for one in optional if one in {*row.given, name}))


@functools.lru_cache(maxsize=4096)
def notices(case: Case, kind: str, name: str) -> bool:
    """Whether the answer to a case changes, or is refused, without an option or an input of it."""
    inputs, parameters = case.at(case.dtypes[0])
    given = {"inputs": dict(inputs), "options": dict(case.options), "config": dict(case.config)}
    if given[kind].pop(name, None) is None:
        return False
    changed = replace(case, options=given["options"], config=given["config"])
    try:
        with np.errstate(all="ignore"):
            answer = computed_outputs(changed, given["inputs"], parameters)
    except (AttentionError, ValueError):  # a mask of neither lengths nor mask is None
        return True
    right = outputs(case, case.dtypes[0])
    return answer.keys() != right.keys() or any(_differ(right[name], answer[name]) for name in right)


def _differ(right: np.ndarray, answer: np.ndarray) -> bool:
    """Whether arrays differ by more than rounding."""
    if right.shape != answer.shape or right.dtype.kind != "f":
        return not np.array_equal(right, answer)
    return not np.allclose(right, answer, rtol=1e-4, atol=1e-4 * np.abs(right).max(initial=0.0), equal_nan=True)


def _factors(call: Call) -> list[Factor]:
    """The factors of a call: its optional arrays, and the values of its options; of a search, no constructor's."""
    factors = [Factor(tensor.name, "inputs") for tensor in call.inputs if tensor.optional]
    offered: dict[Literal["config", "options"], tuple[Option, ...]] = {
        "config": call.entry.options if call.method == "call" else (),
        "options": call.function.options,
    }
    for kind, options in offered.items():
        for option in options:
            if option.default is None or option.name in (*IN_TRAINING, "dtype"):
                continue
            every = {"bool": (True, False), "str": option.choices}.get(option.type, ())
            values = [value for value in every if value != option.value] if len(every) <= MOST_VALUES else []
            factors += [Factor(option.name, kind, option, value) for value in values or (None,)]
    return factors


def _pairs(call: Call) -> Iterator[Condition]:
    """Any two options or optional arrays, both with an effect; arrays also where queries or steps equal keys."""
    factors = _factors(call)
    for first, second in itertools.combinations(factors, 2):
        if first.name != second.name:

            def holds(case: Case, first: Factor = first, second: Factor = second) -> bool:
                pair = (first, second)
                return all(one.is_in(case) for one in pair) and all(notices(case, one.kind, one.name) for one in pair)

            def aim(row: Drawn, pick: Pick, first: Factor = first, second: Factor = second) -> Drawn:
                return second.aim(first.aim(row, pick), pick)

            yield Condition("pairs", f"{first.text}_and_{second.text}", holds, aim)
    for axis, factor in itertools.product(("queries", "steps"), factors):
        if (
            {axis, "keys"} <= {*call.sizes}
            and factor.kind == "inputs"
            and factor.name in ("valid_lens", "mask", "bias")
        ):
            yield Condition("pairs", f"{factor.name}_and_{axis}_as_many_as_keys", *_on_square(factor, axis))
    if call.method == "beam":
        yield Condition("pairs", "length_penalty_and_stopping", _stops_with_penalty, factors[-1].aim)


def _on_square(factor: Factor, axis: str) -> tuple[Holds, Aim]:
    def holds(case: Case) -> bool:
        sizes = sizes_of(case)
        return (
            factor.is_in(case) and sizes.get(axis) == sizes.get("keys", 0) > 1 and notices(case, "inputs", factor.name)
        )

    return holds, lambda row, pick: _with_sizes(**dict.fromkeys((axis, "keys"), pick((2, 3, 4))))(
        factor.aim(row, pick), pick
    )


def _stops_with_penalty(case: Case) -> bool:
    """Whether some hypotheses end before the others, with a length penalty that has an effect."""
    if not case.options.get("length_penalty") or not notices(case, "options", "length_penalty"):
        return False
    return len(np.unique(outputs(case, case.dtypes[0])["lengths"])) > 1


# ------------------------------------------------------------------------------------------------ equal axes


@functools.cache
def sizes_of(case: Case) -> dict[str, int]:
    """The size of every axis of a case: of its arrays, and of its layer's constructor."""
    entry = find(case.operator)
    sizes = dict(entry.sizes(case.config)) if isinstance(entry, Layer) else {}
    sizes = {name: size for name, size in sizes.items() if isinstance(size, int)}
    called = called_of(entry, case.method)
    sizes |= {COUNTS.get(name, name): size for name, size in case.options.items() if type(size) is int}
    sizes |= case.drawn.sizes if case.drawn else {}
    tensors = inputs_of(called.time_major if case.config.get("time_major") else entry, case.method)
    for tensor in sorted(tensors, key=lambda tensor: not tensor.broadcast):  # those of exact sizes last
        array = case.inputs.get(tensor.name)
        if array is not None:
            layout = next((axes for axes in tensor.layouts if len(axes) == array.ndim), ())
            sizes |= dict(zip(layout, array.shape, strict=False))
    sizes["heads"] = sizes.get("num_heads", sizes.get("heads", 0))
    return sizes


def _groups(call: Call) -> list[tuple[str, ...]]:
    """The axes of each array, parameter and result whose sizes are free, and a function's whole numbers."""
    tensors = (*call.inputs, *call.function.outputs)
    layer = call.entry if isinstance(call.entry, Layer) else None
    axes = [*(tensor.axes for tensor in tensors), *(one.axes for one in (layer.parameters if layer else ()))]
    if layer is None:
        counts = [option.name for option in call.function.options if option.type == "int" and option.domain != "token"]
        axes.append(tuple(COUNTS.get(name, name) for name in counts))
    aliases = {"heads?": "num_heads", "key_heads?": "num_key_heads", "heads": "num_heads"}
    known = {*call.sizes, *axes[-1]} if layer is None else {*call.sizes}
    names = [
        tuple(alias if (alias := aliases.get(axis)) in known else axis.removesuffix("?") for axis in one)
        for one in axes
    ]
    return [tuple(dict.fromkeys(axis for axis in one if axis in known)) for one in names]


def _choices(call: Call, axis: str) -> tuple[int, ...]:
    return call.sizes.get(axis, (1, 2, 3, 4))


def _with_sizes(**sizes: int) -> Aim:
    def aim(row: Drawn, pick: Pick) -> Drawn:
        options = {name: size for name, size in sizes.items() if name in row.options}
        changed = {**row.sizes, **{name: size for name, size in sizes.items() if name not in options}}
        for axis, most in (*MOST.items(), ("keys", "num_positions")):
            if axis in sizes and most in changed:
                changed[most] = max(changed[axis], changed[most])
        return replace(row, sizes=changed, options={**row.options, **options})

    return aim


def _equal_axes(call: Call) -> Iterator[Condition]:
    """Any two axes of an array equal and above 1; any two of size 1; and those of a broadcast mask."""
    groups = _groups(call)
    for first, second in sorted({pair for axes in groups for pair in itertools.combinations(sorted(axes), 2)}):
        common = {*_choices(call, first)} & {*_choices(call, second)}

        def holds(case: Case, first: str = first, second: str = second) -> bool:
            return sizes_of(case).get(first) == sizes_of(case).get(second, 0) > 1

        def aim(row: Drawn, pick: Pick, first: str = first, second: str = second, common: set[int] = common) -> Drawn:
            size = pick(sorted(size for size in common if 1 < size < 10))
            return _with_sizes(**{first: size, second: size})(row, pick)

        if any(1 < size < 10 for size in common):
            yield Condition("equal axes", f"{first}_as_many_as_{second}", holds, aim)
        if 1 in common:
            yield Condition(
                "equal axes",
                f"{first}_and_{second}_of_1",
                _both_one(first, second),
                _with_sizes(**{first: 1, second: 1}),
            )
    exact = {axis.removesuffix("?") for tensor in call.inputs if not tensor.broadcast for axis in tensor.axes}
    exact |= {COUNTS.get(option.name, "") for option in call.function.options}
    for tensor in call.inputs:
        axes = [axis.removesuffix("?") for axis in tensor.axes if axis != "one"]
        if tensor.broadcast and tensor.optional and len({*axes}) > 2:
            pairs = [(one, other) for one, other in itertools.permutations(axes, 2) if one != other and one in exact]
            yield from (_broadcast_as(call, tensor, *pair) for pair in pairs)


def _both_one(first: str, second: str) -> Holds:
    return lambda case: sizes_of(case).get(first) == sizes_of(case).get(second) == 1


def _broadcast_as(call: Call, tensor: Tensor, one: str, other: str) -> Condition:
    """A mask with one entry for all of an axis that is as long as another one, which the mask has in full."""
    alias = {"heads": "num_heads"} if "num_heads" in call.sizes else {}
    counted = {COUNTS.get(option.name, "") for option in call.function.options}

    def holds(case: Case) -> bool:
        row = case.drawn
        if row is None or tensor.name not in row.given or one not in row.ones or other in row.ones:
            return False
        sizes = row.all_sizes if "heads" in row.sizes else {**row.all_sizes, "heads": 0}
        return one not in call.broadcast_alone(row) - counted and sizes.get(one, 0) == sizes.get(other, 0) > 1

    def aim(row: Drawn, pick: Pick) -> Drawn:
        size: int = pick((2, 3, 4))
        sizes = dict.fromkeys((one, other, *(alias[axis] for axis in (one, other) if axis in alias)), size)
        ones = dict.fromkeys((*(axis for axis in row.ones if axis != other), one))
        return replace(_with_array(row, tensor.name), ones=(*ones,), sizes={**row.sizes, **sizes}, layouts={})

    return Condition("equal axes", f"{tensor.name}_of_one_of_{one}_as_many_as_{other}", holds, aim)


# ------------------------------------------------------------------------------------------------ integers


def _integers(call: Call) -> Iterator[Condition]:
    """Each array of whole numbers in each type, and of the short types with an axis beyond their range."""
    for tensor in call.inputs:
        if tensor.kind != "integer":
            continue
        axis = IDS.get(tensor.name, "keys")
        axis = axis if axis in call.axes or axis in call.sizes else "steps"
        ranges = {kind: int(np.iinfo(kind).max) for kind in INTEGER}
        for kind, most in ranges.items():  # first, since they are of that type, too
            if most < 300 and axis in call.sizes:
                yield Condition(
                    "integers", f"{tensor.name}_of_{kind}_beyond_it", *_of_type(tensor.name, kind, axis, most)
                )
        for kind in ranges:
            yield Condition("integers", f"{tensor.name}_of_{kind}", *_of_type(tensor.name, kind, axis, 0))


def _of_type(name: str, kind: str, axis: str, most: int) -> tuple[Holds, Aim]:
    def holds(case: Case) -> bool:
        return name in case.inputs and case.inputs[name].dtype.name == kind and sizes_of(case).get(axis, 0) >= most

    def aim(row: Drawn, pick: Pick) -> Drawn:
        typed = replace(_with_array(row, name), types={**row.types, name: kind})
        return _with_sizes(**{axis: most + 4})(typed, pick) if most else typed

    return holds, aim


# ------------------------------------------------------------------------------------------------ all sizes

CHEAP: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("LayerNorm", "RMSNorm", "position_permutation"), ("features",)),
    "alibi_bias": ("heads",),
    **dict.fromkeys(("SinusoidalPositions", "RotaryPositions"), ("features",)),
    "causal_mask": ("keys", "queries"),
}
"""Operators that have every size of these axes: they cost little."""
EVERY_SIZE = (*range(1, 66), 1025)
ODD_WIDTHS = range(513, 1024, 2)
"""Odd widths of rows that are longer than a block and no multiple of a register: of keys, and of features."""


def _all_sizes(call: Call) -> Iterator[Condition]:
    even = {option.name for option in call.entry.options if option.domain == "even"}
    for axis in CHEAP.get(call.entry.name, ()):
        for size in EVERY_SIZE:
            if size >= min(call.sizes[axis], key=lambda size: size or 1) and (axis not in even or size % 2 == 0):
                yield Condition(
                    "all sizes", f"{axis}_of_exactly_{size}", _of_size(axis, (size,)), _with_sizes(**{axis: size})
                )
    if call.group in ("functions", "layers") or call.entry.name in CHEAP:
        rows = [one.axes[-1].removesuffix("?") for one in call.inputs if one.name in call.floating and one.axes]
        narrow = isinstance(call.entry, Layer) and call.entry.name not in CHEAP
        for axis in sorted({"keys", *rows[: 0 if narrow else 1]} & {*call.sizes} - even):
            aim = _with_sizes(**{axis: 769})
            yield Condition("all sizes", f"{axis}_odd_between_513_and_1023", _of_size(axis, ODD_WIDTHS), aim)


def _of_size(axis: str, sizes: Sequence[int]) -> Holds:
    return lambda case: sizes_of(case).get(axis, 0) in sizes


# ------------------------------------------------------------------------------------------------ views


def _views(call: Call) -> Iterator[Condition]:
    """One array as keys and values, with its gradient; masks that repeat one sequence with a stride of 0."""
    for shared in sharing(call):

        def holds(case: Case, shared: tuple[str, ...] = shared) -> bool:
            return {*case.shared} == {*shared} and case.gradients and sizes_of(case).get("keys", 2) > 1

        def aim(row: Drawn, pick: Pick, shared: tuple[str, ...] = shared) -> Drawn:
            sizes = {**row.sizes, **equal_sizes(call, dict(row.sizes), shared)}
            return replace(row, shared=shared, sizes=sizes, layouts={}, hidden="", scales={}, lens="")

        yield Condition("views", f"gradient_of_{'_and_'.join(shared)}_as_keys", holds, aim)
    for name in _booleans(call):
        yield Condition("views", f"{name}_expanded", *_of_one_sequence(name))


def _booleans(call: Call) -> list[str]:
    return [tensor.name for tensor in call.inputs if tensor.kind == "boolean" and tensor.axes[0] == "batch"]


def _of_one_sequence(name: str) -> tuple[Holds, Aim]:
    def holds(case: Case) -> bool:
        return case.layouts.get(name) == "expanded" and name in case.inputs and len(case.inputs[name]) > 1

    def aim(row: Drawn, pick: Pick) -> Drawn:
        sizes = {**row.sizes, "batch": max(2, row.sizes.get("batch", 1))}
        ones = tuple(axis for axis in row.ones if axis != "batch")
        return replace(_with_array(row, name), layouts={name: "expanded"}, hidden="", sizes=sizes, ones=ones)

    return holds, aim
