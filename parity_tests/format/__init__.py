"""The format of test cases: calls, drawn arrays, expected values and selections of cells.

A case is one call of one operator: its options, its inputs, its parameters. Arrays are drawn in float64 and rounded to
the dtype in which the case runs. Nothing here knows an operator of this project by name.
"""
