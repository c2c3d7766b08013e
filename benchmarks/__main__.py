"""`python -m benchmarks`: the command line."""

from benchmarks.command import bench

if __name__ == "__main__":
    bench(prog_name="python -m benchmarks")
