"""Who is asked, one process each: files of cases go in, recordings of the answers come out."""
