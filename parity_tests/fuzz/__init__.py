"""Fuzzing: random cases, and minimised ones where a backend fails."""
