"""Fuzzing: a seed goes in; minimised failing cases come out."""
