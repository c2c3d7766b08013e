"""Known-wrong implementations: the reference with one thing broken goes in; which check kills it comes out."""
