"""Test vectors for any language: cases as files, and answers read from files."""
