"""Detect which value of a boolean mask leaves a key open, and recognise an inverted mask.

    import numpy as np
    from parity_tests.polarity import polarity

    def attend(queries, keys, values, mask):
        padding = torch.tensor(mask[:, 0])
        return layer(*map(torch.tensor, (queries, keys, values)), key_padding_mask=padding)[0].detach().numpy()

    assert polarity(attend, query_size=16) == "True = hidden"

It requires neither scores nor parameters. A context can depend on a value only if its key is open, so each value is
changed in a separate sequence, and its influence is compared with the mask.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attention_core import draws

Attend = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]

MAY_ATTEND = "True = may attend"
HIDDEN = "True = hidden"
IGNORED = "ignored"
NEITHER = "neither"

NUM_QUERIES = 3
OPEN = np.array([True, True, False, True, False])
"""The mask of every query; it differs from its reverse, its inverse, and the reverse of its inverse."""
FAINT = 1e-3
"""The smallest influence of an open key's value, relative to the largest influence; weights of 0 have none."""


def question(
    *, query_size: int = 8, key_size: int | None = None, value_size: int | None = None, dtype: str = "float32"
) -> dict[str, np.ndarray]:
    """Queries, keys, values and mask: copies of one sequence, each with a different value changed.

    Shapes: queries (keys + 1, queries, query_size), keys (keys + 1, keys, key_size), values (keys + 1, keys,
    value_size), mask (keys + 1, queries, keys). key_size defaults to query_size, and value_size to key_size.
    """
    key_size = query_size if key_size is None else key_size
    num_keys = len(OPEN)
    sizes = {
        "queries": (NUM_QUERIES, query_size),
        "keys": (num_keys, key_size),
        "values": (num_keys, key_size if value_size is None else value_size),
    }
    arrays = {
        name: np.repeat(draws.uniform(f"polarity/{name}", shape)[None], num_keys + 1, axis=0).astype(dtype)
        for name, shape in sizes.items()
    }
    for key in range(num_keys):
        arrays["values"][key + 1, key] += 1.0
    mask = np.broadcast_to(OPEN, (num_keys + 1, NUM_QUERIES, num_keys)).copy()
    return {**arrays, "mask": mask}


def answer(context: np.ndarray) -> str:
    """Classify the context of `question` as one of the four results.

    Shapes: context (keys + 1, queries, features).
    """
    context = np.asarray(context, np.float64)
    heard = np.abs(context[1:] - context[:1]).max(axis=(1, 2))
    if not np.isfinite(context).all() or heard.max() == 0.0:
        return NEITHER
    open_keys = heard > FAINT * heard.max()
    for name, expected in ((MAY_ATTEND, OPEN), (HIDDEN, ~OPEN), (IGNORED, np.ones_like(OPEN))):
        if np.array_equal(open_keys, expected):
            return name
    return NEITHER


def polarity(
    attend: Attend,
    *,
    query_size: int = 8,
    key_size: int | None = None,
    value_size: int | None = None,
    dtype: str = "float32",
) -> str:
    """Whether True in a mask means that a query may attend to a key, or that the key is hidden from it.

    attend(queries, keys, values, mask) returns the context, all of them NumPy arrays: three queries, five keys, six
    sequences. The mask is the same for every query, so that mask[:, 0] is a padding mask.
    Returns: "True = may attend", "True = hidden", "ignored" if every key is open, or "neither".
    """
    arrays = question(query_size=query_size, key_size=key_size, value_size=value_size, dtype=dtype)
    return answer(attend(arrays["queries"], arrays["keys"], arrays["values"], arrays["mask"]))
