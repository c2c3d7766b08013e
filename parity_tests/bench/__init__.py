"""The bench: our layers against the same thing as tutorials write it, and against the frameworks' own layers."""
