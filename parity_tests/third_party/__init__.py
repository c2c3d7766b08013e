"""Implementations of third parties as targets of the parity tests.

Each module is imported in a worker that has its framework.
"""
