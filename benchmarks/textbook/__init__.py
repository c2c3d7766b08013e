"""Attention as tutorials write it, in each framework: what ours is compared with."""
