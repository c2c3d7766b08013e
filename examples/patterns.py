"""Sparse patterns of attention, from masks alone: `python examples/patterns.py torch patterns.png`.

The 36 steps are the pixels of an image of six rows. For each pattern, prints the share of open pairs of steps, and how
many layers it takes until every step has heard of every other: the price of leaving pairs out. In the last one, half of
the heads have one pattern and half another, and each head's weights are those under its pattern alone. A mask says
which weights are 0, and saves no time. Draws the masks if a file is named.
"""

from __future__ import annotations

import importlib
import sys

import numpy as np

import backends
from attention_core import draws

SIDE, FEATURES, HEADS, NUM_RANDOM = 6, 16, 4, 3
STEPS = SIDE * SIDE


def main(name: str, file: str | None) -> None:
    """Make the masks in one framework, count, and draw."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    near = attention.window_mask(STEPS, STEPS, left=2, right=2)
    every_other = attention.stride_mask(STEPS, STEPS, stride=2)
    dilated = attention.mask_and(attention.window_mask(STEPS, STEPS, left=4, right=4), every_other)
    rows = attention.block_mask(STEPS, STEPS, size=SIDE)
    columns = attention.stride_mask(STEPS, STEPS, stride=SIDE)
    summary = runtime.from_numpy(np.arange(STEPS)[None] == 0)  # one step, as a class token
    of_summary = attention.global_mask(summary, summary)
    chosen = draws.integers("random keys", (1, STEPS, NUM_RANDOM), STEPS)
    random = runtime.from_numpy((chosen[..., None] == np.arange(STEPS)).any(axis=2))
    masks = {
        "window": near,
        "dilated window": dilated,
        "rows of the image": rows,
        "axial": attention.mask_or(rows, columns),
        "window, global step": attention.mask_or(near, of_summary),
        "window, random keys": attention.mask_or(near, random),
        "all three": attention.mask_or(attention.mask_or(near, of_summary), random),
    }
    arrays = {title: runtime.to_numpy(mask)[0] for title, mask in masks.items()}
    half = HEADS // 2
    heads = np.stack([arrays["window"]] * half + [arrays["dilated window"]] * (HEADS - half))
    arrays["by head"] = heads.any(axis=0)
    for title, mask in arrays.items():
        print(f"{name}: {title:<20} {100.0 * mask.mean():>4.0f} % of the pairs, layers: {depth(mask) or 'never'}")

    config = {"query_size": FEATURES, "num_heads": HEADS}
    layer = runtime.build(attention.MultiHeadAttention, config, "float64")
    drawn = attention.get_parameters(layer).items()
    attention.set_parameters(layer, {key: draws.uniform(key, array.shape, 0.5) for key, array in drawn})
    states = runtime.from_numpy(draws.uniform("pixels", (1, STEPS, FEATURES), 2.0))

    def weights_under(mask: np.ndarray) -> np.ndarray:
        given = runtime.from_numpy(mask)
        return runtime.to_numpy(layer(states, states, states, mask=given, per_head=True)[1])[0]

    together = weights_under(heads[None])
    alone = np.concatenate(
        [weights_under(arrays["window"][None, None])[:half], weights_under(arrays["dilated window"][None, None])[half:]]
    )
    print(f"{name}: by head: weights as under each pattern alone, within {np.abs(together - alone).max():.0e},")
    print(f"{name}:     and {'0' if not together[~heads].any() else 'more'} where a head's pattern is closed")

    if file is not None:
        from parity_tests.plots import heatmap

        steps = [f"{step // SIDE},{step % SIDE}" if step % SIDE == 0 else "" for step in range(STEPS)]
        pictures = [mask.astype(float) for mask in arrays.values()]
        heatmap(pictures, steps, steps, titles=list(arrays)).savefig(file)
        print(f"drawn in {file}")


def depth(mask: np.ndarray) -> int | None:
    """The number of layers after which every step has heard of every other; None if some never do."""
    reached, layers = mask, 1
    while not reached.all():
        further = reached @ mask
        if (further == reached).all():
            return None
        reached, layers = further, layers + 1
    return layers


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "torch", sys.argv[2] if len(sys.argv) > 2 else None)
