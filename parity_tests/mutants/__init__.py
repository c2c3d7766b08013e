"""Known-wrong implementations, and which checks kill them."""
