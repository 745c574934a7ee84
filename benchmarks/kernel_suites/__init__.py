"""What benchmarks/kernels.py measures, by topic."""
