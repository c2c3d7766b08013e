"""The judge: cases, workers, recordings, comparison, report. It decides whether implementations of attention agree."""
