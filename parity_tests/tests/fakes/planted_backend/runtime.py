"""The doorway to the same."""

from numpy_backend.runtime import *  # noqa: F403 (there is nothing else)
