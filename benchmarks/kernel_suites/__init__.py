"""Measurements of benchmarks/kernels.py, by topic."""
