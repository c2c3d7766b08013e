"""The cases of this project: calls of every operator, and their expected answers.

A case is one call of one operator: its options, its inputs, its parameters. Arrays are drawn in float64 and rounded to
the dtype in which the case runs. In the cases written by hand all axes have different sizes, so that a
swapped axis cannot pass, and lengths and masks are full arrays of one shape wherever the case allows it, so that a
compiled function serves many cases. Those of `covering` vary sizes, masks, memory layout, state and magnitude.
"""
