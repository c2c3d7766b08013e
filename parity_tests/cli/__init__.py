"""The command line: options and arguments go in; tables, files and an exit code come out."""

import sys

from parity_tests.shadowing import shadowed

if sentence := shadowed():
    print(f"Error: {sentence}", file=sys.stderr)
    sys.exit(2)
