"""The measurements of benchmarks/experiments.py: one module for each claim."""
