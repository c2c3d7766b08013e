"""What is judged: implementations of attention go in; verdicts on whether they agree come out.

Cases become recordings in a process for each implementation, and recordings are compared.
"""
