"""Cases of images: their patches, and a Transformer that reads these."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from attention_core import draws
from parity_tests.cases.transformer import dropping
from parity_tests.format.case import DTYPES, EXACT, SEED, Arrays, Case, Sizes, layer_case
from parity_tests.format.families import Family

SHAPE = {"batch": 5, "height": 4, "width": 6, "channels": 3}
VISION = {
    **{axis: size for axis, size in SHAPE.items() if axis != "batch"},
    "patch_size": 2,
    "num_classes": 8,
    "features": 12,
    "num_heads": 3,
    "hidden_size": 9,
    "num_layers": 2,
}


def drawn_images(name: str, sizes: Sizes = SHAPE) -> Arrays:
    """Numbers for each pixel."""
    return {"images": draws.uniform(f"{name}.images", tuple(sizes[axis] for axis in SHAPE), 1.0, SEED)}


def patches_cases() -> Iterator[Case]:
    """Images in patches."""
    name = "patches"
    for label, shows, patch_size, shape, dtypes in (
        ("plain", "Patches of two by two pixels.", 2, {}, DTYPES),
        ("three", "Patches of three by three pixels.", 3, {"height": 6, "width": 9}, DTYPES),
        ("pixels", "Each pixel is a patch.", 1, {}, EXACT),
        ("one_row", "A single row of patches.", 4, {"width": 8}, EXACT),
        ("one_channel", "Images in grey.", 2, {"channels": 1}, EXACT),
        ("no_images", "There are no images.", 2, {"batch": 0}, EXACT),
        ("no_rows", "Images without rows.", 2, {"height": 0}, EXACT),
    ):
        inputs = drawn_images(name, {**SHAPE, **shape})
        yield Case(name, label, shows, inputs, {"patch_size": patch_size}, dtypes=dtypes)


def vision_cases() -> Iterator[Case]:
    """A Transformer over the patches."""
    name = "VisionTransformer"
    case, inputs = partial(layer_case, name), drawn_images(name)
    yield case("plain", "The layers of the paper.", inputs, VISION, DTYPES)
    pixel = {"height": 1, "width": 1}
    one = drawn_images(name, {**SHAPE, **pixel})
    small = {**VISION, **pixel, "patch_size": 1, "num_layers": 1}
    yield case("one_patch", "A single patch beside the class token.", one, small)
    grey = drawn_images(name, {**SHAPE, "channels": 1})
    yield case("one_channel", "Images in grey.", grey, {**VISION, "channels": 1}, EXACT)
    yield case("pixels", "Each pixel is a patch.", inputs, {**VISION, "patch_size": 1, "num_layers": 1}, EXACT)
    for activation in ("relu", "gelu_tanh", "silu"):
        config = {**VISION, "activation": activation}
        yield case(activation, f"The activation {activation}.", inputs, config, EXACT)
    yield case("epsilon", "Another epsilon.", inputs, {**VISION, "epsilon": 0.25}, EXACT)
    masks = dropping(
        name,
        embedding_dropout_mask=(5, 7, 12),
        self_dropout_mask=(4, 5, 3, 7, 7),
        hidden_dropout_mask=(4, 5, 7, 9),
        dropout_mask=(4, 2, 5, 7, 12),
    )
    deep = {**VISION, "num_layers": 4}
    yield case("dropout", "Four layers, with dropout everywhere.", {**inputs, **masks}, deep, EXACT)
    yield case("logits", "The logits alone.", inputs, VISION, options={"need_weights": False})
    yield case("no_batch", "There are no images.", drawn_images(name, {**SHAPE, "batch": 0}), VISION, EXACT)


FAMILIES = (Family(("patches",), patches_cases), Family(("VisionTransformer",), vision_cases))
