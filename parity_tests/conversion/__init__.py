"""Weights on their way: a file of one framework goes in; a validated file of another comes out."""
