"""One process for each backend: files of cases go in, recordings of the answers come out."""
