"""Validated conversion of weight files: the source's own layer beside the converted one."""
