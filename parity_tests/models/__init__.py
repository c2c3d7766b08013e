"""Two models that nobody specified: whether they agree, and the first sublayer that differs."""
