"""The command line."""

import os
import sys

from parity_tests.shadowing import shadowing_message

if sentence := shadowing_message():
    print(f"Error: {sentence}", file=sys.stderr)
    sys.exit(2)

# Before NumPy is imported. The reference multiplies many small arrays beside workers that use the cores: with a thread
# for each core, OpenBLAS took four times as long. Workers have settings of their own.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
