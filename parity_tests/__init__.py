"""The parity tests: cases, workers, recordings, comparison and reports."""
