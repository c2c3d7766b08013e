"""Weight conversion: a file of one framework goes in; a validated file of another comes out."""
