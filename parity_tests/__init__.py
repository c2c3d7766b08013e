"""The parity tests: implementations of attention go in; verdicts on their agreement come out.

Cases are run in a process for each implementation, and the recordings are compared.
"""
