"""Every mutant, family by family."""

from __future__ import annotations

from parity_tests.mutants import (
    answers,
    attention,
    decoders,
    masks,
    multi_head,
    pooling,
    positions,
    recurrent,
    scores,
    training,
)
from parity_tests.mutants.mutant import registered

FAMILIES = (scores, masks, pooling, attention, multi_head, positions, recurrent, decoders, answers, training)
MUTANTS = registered()
