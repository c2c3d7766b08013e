"""The command line: options and arguments go in; tables, files and an exit code come out."""
