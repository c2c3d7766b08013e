"""Wrong attention to segments."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import with_parameters

CALL = "segments.SegmentAttention.__call__"
DISTANCE = "segments.SegmentAttention._by_distance"


@mutant(DISTANCE, touches=lambda distance: distance.shape[-1] > distance.shape[-2])
def counted_from_the_segment(original: Any, distance: Any) -> Any:
    """Distances are counted from the start of the segment, so that the memory is at distance 0."""
    first = distance.shape[-1] - distance.shape[-2]
    return original(distance=np.maximum(distance - first, 0))


@mutant(DISTANCE)
def shifted_by_one(original: Any, distance: Any) -> Any:
    """Every key is taken for one step farther away, as far as there are distances."""
    return original(distance=np.minimum(distance + 1, distance.shape[-1] - 1))


@mutant(DISTANCE)
def shifted_the_other_way(original: Any, distance: Any) -> Any:
    """Rows of scores by distance are not reversed: the first key of a query is at distance 0."""
    return original(distance=np.broadcast_to(np.arange(distance.shape[-1]), distance.shape))


@mutant(CALL)
def u_and_v_exchanged(original: Any, self: Any) -> Any:
    """What is added for content and what for distance are exchanged."""
    with with_parameters(self, u=self.parameters["v"], v=self.parameters["u"]):
        return original()


@mutant(CALL)
def u_not_added(original: Any, self: Any) -> Any:
    """Queries score content without u."""
    with with_parameters(self, u=0.0 * self.parameters["u"]):
        return original()


@mutant(CALL)
def v_not_added(original: Any, self: Any) -> Any:
    """Queries score distances without v."""
    with with_parameters(self, v=0.0 * self.parameters["v"]):
        return original()


@mutant(DISTANCE)
def distance_not_scaled(original: Any, queries: Any) -> Any:
    """Scores by distance are not divided by the root of the features of a head."""
    return original() * np.sqrt(queries.shape[-1])


@mutant(DISTANCE)
def distance_ignored(original: Any) -> Any:
    """Scores are by content alone."""
    return 0.0 * original()


@mutant("segments.concatenate", cases="SegmentAttention-*")
def memory_behind_the_segment(original: Any, first: Any, second: Any) -> Any:
    """The keys are the segment, and the memory behind it."""
    return original(first=second, second=first)


@mutant("segments.concatenate", cases="SegmentAttention-*")
def memory_newest_first(original: Any, first: Any) -> Any:
    """The steps of the memory are in the order of a stack: the newest first."""
    return original(first=first[..., ::-1, :])


@mutant("segments.pool", cases="SegmentAttention-*", touches=lambda allowed: allowed.shape[-2] > 1)
def later_steps_seen(original: Any, allowed: Any) -> Any:
    """Steps attend to later ones of their segment."""
    return original(allowed=np.ones_like(allowed))


@mutant("segments.pool", cases="SegmentAttention-*")
def step_itself_hidden(original: Any, allowed: Any) -> Any:
    """A step attends to those before it, and not to itself."""
    steps = np.arange(allowed.shape[-1]) - np.arange(allowed.shape[-2])[:, None]
    return original(allowed=allowed & (steps < allowed.shape[-1] - allowed.shape[-2]))


@mutant(
    CALL, cases="SegmentAttention-mask SegmentAttention-f*", touches=lambda mask: mask is not None and not mask.all()
)
def empty_memory_attended_to(original: Any) -> Any:
    """The mask is ignored."""
    return original(mask=None)
