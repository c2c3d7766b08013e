"""`python -m parity_tests`: the command line."""

from parity_tests.cli.main import main

if __name__ == "__main__":
    main()
