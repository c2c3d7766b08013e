"""Benchmarks: items go in; ratios of third-party implementations to this library come out."""
