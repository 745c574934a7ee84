"""Fused and quantised operations next to their plain references; dispatch.py selects the implementation."""
