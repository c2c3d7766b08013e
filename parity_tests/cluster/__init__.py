"""Clusters of Dask: batches of cells and ranges of numbers go in; recordings, counts and findings come out."""
