"""Which keys a boolean mask leaves open: a check that recognises an inverted mask.

    import numpy as np
    from parity_tests.polarity import polarity

    def attend(queries, keys, values, mask):
        padding = torch.tensor(mask[:, 0])
        return layer(*map(torch.tensor, (queries, keys, values)), key_padding_mask=padding)[0].detach().numpy()

    assert polarity(attend, query_size=16) == "True = hidden"

It asks nothing of the scores and knows no parameters. A context can depend on a value only if its key is open, so one
value after the other is changed, each in a sequence of its own, and what is heard of it is held against the mask.
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
"""The mask, the same for every query: neither it reversed, nor its opposite, nor its opposite reversed is the same."""
FAINT = 1e-3
"""What is heard of a value, beside the value that is heard best, if its key is open: weights of 0 are not."""


def question(
    *, query_size: int = 8, key_size: int | None = None, value_size: int | None = None, dtype: str = "float32"
) -> dict[str, np.ndarray]:
    """Queries, keys, values and mask: one sequence again and again, with another value changed each time.

    Shapes: queries (keys + 1, queries, query_size), keys (keys + 1, keys, key_size), values (keys + 1, keys,
    value_size), mask (keys + 1, queries, keys). key_size is query_size unless given, value_size key_size.
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
    """What the context of `question` says of the mask: one of the four.

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

    attend(queries, keys, values, mask) gives the context, all of them NumPy's arrays: three queries, five keys, six
    sequences. The mask is the same for every query, so that mask[:, 0] is a padding mask.
    Returns: "True = may attend", "True = hidden", "ignored" if every key is open, or "neither".
    """
    arrays = question(query_size=query_size, key_size=key_size, value_size=value_size, dtype=dtype)
    return answer(attend(arrays["queries"], arrays["keys"], arrays["values"], arrays["mask"]))
