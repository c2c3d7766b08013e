"""Rules of single operators beyond shapes, dtypes and domains; the specification names them, and `check` applies them.

A rule takes the operator's title, its sizes and arguments by name, and the size of every axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attention_core.errors import ADVICE, OptionError, ShapeError, check_needed, check_tokens, check_unused, list_shapes


def one_row(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse a mask that a key padding mask cannot represent: one with several rows.

    Raises: ShapeError.
    """
    if axes.get("one", 1) != 1:
        raise ShapeError(
            f"{title}: axis 'queries' is {axes['one']} in mask, expected 1: a key padding mask hides a key from "
            f"every query. Pass a mask with several rows as mask. {list_shapes({'mask': tuple(given['mask'].shape)})}"
        )


def weights_per_head(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse per_head where no weights are returned.

    Raises: OptionError.
    """
    if given["per_head"] and not given["need_weights"]:
        raise OptionError(f"{title}: per_head is True, expected False: need_weights=False returns no weights.")


def position_for_each_key(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse more keys than a location score has positions.

    Raises: ShapeError.
    """
    num_keys, positions = given.get("num_keys", axes.get("keys")), given.get("num_positions", axes.get("positions"))
    if num_keys is not None and "position" in given and given["position"] is None:
        num_keys += axes.get("steps", 0)  # those that extend a memory
    if num_keys is not None and positions is not None and num_keys > positions:
        title = title if "num_keys" in given else "LocationAttention"
        raise ShapeError(
            f"{title}: num_keys is {num_keys} but queries has {positions} positions. "
            "Score only the first keys, or make the layer with a position for each key."
        )


def query_for_each_key(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse causal attention with more or fewer queries than keys.

    Raises: ShapeError.
    """
    queries, keys = axes.get("queries"), axes.get("keys")
    if given["causal"] and queries is not None and keys is not None and queries != keys:
        names = ("queries", "keys", "values")
        raise ShapeError(
            f"{title}: axis 'queries' is {queries}, expected {keys} as axis 'keys': with causal=True query i attends "
            "to the keys up to i. Give a query for each key, or take single steps by linear_attention_step. "
            f"{list_shapes({name: tuple(given[name].shape) for name in names})}"
        )


def one_row_of_mask(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse a mask with a row for each query.

    Raises: ShapeError.
    """
    if axes.get("one", 1) != 1:
        shapes = list_shapes({name: tuple(given[name].shape) for name in ("queries", "keys", "values", "mask")})
        raise ShapeError(f"{title}: axis 'one' is {axes['one']} in mask, expected 1. {ADVICE['one']} {shapes}")


def column_for_each_key(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse more keys than the layer has positions.

    Raises: ShapeError.
    """
    num_keys, positions = axes.get("keys", 0), given["num_positions"]
    if num_keys > positions:
        raise ShapeError(
            f"{title}: num_keys is {num_keys} but num_positions is {positions}. "
            "Give only the first keys, or make the layer with a position for each key."
        )


def mask_for_each_block(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse a dropout mask with another number of blocks than the keys make.

    Raises: ShapeError.
    """
    if {"keys", "blocks"} <= axes.keys():
        blocks = -(-axes["keys"] // given["stride"])
        if axes["blocks"] != blocks:
            raise ShapeError(
                f"{title}: axis 'blocks' is {axes['blocks']} in dropout_mask, expected {blocks}: {axes['keys']} keys "
                f"make a block of each {given['stride']}. Give a factor for each block."
            )


def whole_patches(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse images whose height or width is no multiple of the size of a patch.

    Raises: ShapeError.
    """
    for axis in ("height", "width"):
        if axes.get(axis, 0) % given["patch_size"]:
            raise ShapeError(
                f"{title}: axis '{axis}' is {axes[axis]} in images, expected a multiple of patch_size, which is "
                f"{given['patch_size']}. Crop or pad the images, or choose another patch_size. "
                f"{list_shapes({'images': tuple(given['images'].shape)})}"
            )


def key_for_each_step(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse a mask or a dropout mask with another number of keys than steps of the memory and of the segment.

    Raises: ShapeError.
    """
    previous = 0 if given.get("previous") is None else axes.get("previous_steps")
    if {"keys", "queries"} <= axes.keys() and previous is not None:
        steps = previous + axes["queries"]
        if axes["keys"] != steps:
            names = ("inputs", "previous", "mask", "dropout_mask")
            shapes = {name: tuple(given[name].shape) for name in names if given.get(name) is not None}
            where = "mask" if axes["keys"] in shapes.get("mask", ())[-1:] else "dropout_mask"
            raise ShapeError(
                f"{title}: axis 'keys' is {axes['keys']} in {where}, expected {steps}: previous has {previous} steps, "
                f"and inputs {axes['queries']}. Give a column for each of them, oldest first. {list_shapes(shapes)}"
            )


def heads_in_groups(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse heads of queries that key heads cannot share evenly.

    Raises: ShapeError.
    """
    heads, key_heads = axes.get("heads"), axes.get("key_heads")
    if heads is not None and key_heads is not None and (heads % key_heads if key_heads else heads):
        names = ("queries", "keys", "values", "mask")
        shapes = {name: tuple(given[name].shape) for name in names if hasattr(given.get(name), "shape")}
        raise ShapeError(
            f"{title}: axis 'heads' is {heads}, expected a multiple of axis 'key_heads', which is {key_heads}. Every "
            f"key head is read by as many query heads as the others. {list_shapes(shapes)}"
        )


def some_heads(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse heads that the layer does not have, a head that is named twice, or all heads.

    Raises: OptionError.
    """
    heads, num_heads = [int(head) for head in given["heads"]], given["num_heads"]
    start = f"{title}: heads is {heads}, expected"
    if any(head >= num_heads for head in heads):
        raise OptionError(f"{start} numbers from 0 to {num_heads - 1}: the layer has {num_heads} heads.")
    if len(set(heads)) < len(heads):
        raise OptionError(f"{start} each head once.")
    if len(heads) == num_heads:
        raise OptionError(f"{start} at most {num_heads - 1} of the {num_heads} heads: a layer has at least one.")


def some_weights(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse weights without a layer or without a head.

    Raises: ShapeError.
    """
    for axis in ("layers", "heads"):
        if axes.get(axis) == 0:
            shapes = list_shapes({"weights": tuple(given["weights"].shape)})
            raise ShapeError(f"{title}: axis '{axis}' is 0 in weights, expected at least 1. {shapes}")


def position_for_each_step(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse a step beyond the last position.

    Raises: ShapeError.
    """
    steps, num_positions = given.get("max_steps", axes.get("steps", 0)), given["num_positions"]
    end = given.get("offset", 0) + steps
    if num_positions is not None and end > num_positions:
        raise ShapeError(
            f"{title}: the last step is at position {end - 1} but num_positions is {num_positions}. "
            "Give fewer steps or a smaller offset, or make the layer with a position for each step."
        )


def position_for_each_token(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse a token beyond the last position, of a source or of its translation.

    Raises: ShapeError.
    """
    for steps in (axes.get("keys", 0), given.get("max_steps", axes.get("steps", 0))):
        position_for_each_step(title, {**given, "max_steps": steps}, axes)


def distances_for_buckets(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse too few buckets, or a max_distance that has a bucket of its own.

    Raises: OptionError.
    """
    num_buckets, max_distance = given.get("num_buckets", axes.get("num_buckets")), given["max_distance"]
    shares = 4 if given["bidirectional"] else 2
    if num_buckets < shares:
        raise OptionError(
            f"{title}: num_buckets is {num_buckets}, expected at least {shares}: with bidirectional="
            f"{given['bidirectional']}, one in {shares} has a single distance."
        )
    if max_distance <= num_buckets // shares:
        raise OptionError(
            f"{title}: max_distance is {max_distance}, expected more than {num_buckets // shares}: with {num_buckets} "
            "buckets, all shorter distances have one each."
        )


def offset_of_window(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse an offset that would be ignored.

    Raises: OptionError.
    """
    if given["mode"] != "monotonic":
        check_unused(title, "offset", given["offset"], f"mode={given['mode']!r} predicts the centre of its window")


def offset_of_rotary_positions(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse an offset that would be ignored.

    Raises: OptionError.
    """
    if given["rotary_layout"] is None:
        check_unused(title, "offset", given["offset"], "rotary_layout=None has no positions")


def known_tokens(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse a first or last token outside the vocabulary.

    Raises: TokenError.
    """
    vocab_size = given.get("target_vocab_size") or given["vocab_size"]
    for name in ("bos", "eos"):
        check_tokens(title, name, given[name], given[name], vocab_size)


def hypotheses(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse num_best above width, or width above vocab_size.

    Raises: OptionError.
    """
    width, num_best = given["width"], given["num_best"]
    vocab_size = given.get("target_vocab_size") or given["vocab_size"]
    if num_best > width:
        raise OptionError(f"{title}: num_best is {num_best}, expected at most width, which is {width}. Widen the beam.")
    if width > vocab_size:
        raise OptionError(
            f"{title}: width is {width}, expected at most vocab_size, which is {vocab_size}: a first step has no more "
            "hypotheses."
        )


def initial_state(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse a state that would be ignored, or a missing one that is required.

    Raises: OptionError.
    """
    initial, state = given["initial"], given["state"]
    if initial == "encoder":
        check_needed(title, "state", state, "initial='encoder' starts with the encoder's last state")
    else:
        check_unused(title, "state", state, f"initial={initial!r} starts without the encoder's state")


def one_direction(title: str, given: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Refuse a single step of a bidirectional layer.

    Raises: OptionError.
    """
    if given["bidirectional"]:
        raise OptionError(
            f"{title}: bidirectional is True, expected False: the backward direction begins at the last step. "
            "Call the layer on whole sequences."
        )
