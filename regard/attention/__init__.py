"""Scaled dot-product attention: attend(), masks, positions, the Attention module, and its kinds."""
