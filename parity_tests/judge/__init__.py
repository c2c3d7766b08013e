"""Comparison of recordings with expected answers and with each other."""
