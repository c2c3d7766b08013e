"""Runs and campaigns on the workers of a Dask cluster."""
