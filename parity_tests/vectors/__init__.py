"""Test vectors for any language: cases go in; arrays, descriptions and digests come out, and answers are read."""
