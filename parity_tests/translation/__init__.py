"""Training and comparison of translators, independent of the framework."""
