"""Comparison: recordings and expected answers go in; verdicts come out."""
