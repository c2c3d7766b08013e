"""Worker processes, one for each backend, and their recordings."""
