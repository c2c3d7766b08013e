"""What every refusal of a conversion is."""

from __future__ import annotations


class WeightError(ValueError):
    """A file of weights cannot be read, or its arrays cannot be converted."""
