"""Third-party implementations as targets, each imported in a worker that has its framework."""
