"""What the frameworks' own attention does: questions, probes and the recorded answers."""
