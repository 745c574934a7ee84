"""Fused implementations of whole blocks."""
