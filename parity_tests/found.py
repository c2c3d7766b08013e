"""What fuzzing found: each line was a difference once, and is a case from then on."""

from __future__ import annotations

from parity_tests.drawn import Drawn

FOUND: tuple[Drawn, ...] = ()
