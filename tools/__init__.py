"""Commands of this repository that measure it, and that write its generated files."""
