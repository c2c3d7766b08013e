"""Benchmarks of this library against third-party implementations."""
