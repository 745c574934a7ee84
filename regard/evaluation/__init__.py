"""Evaluation: metrics with their signatures, reports with their conditions, comparisons, and benchmarks."""
