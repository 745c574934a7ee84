"""Scaled dot-product attention: attend(), masks, positions, the Attention module, and its kinds.

Reading order:

- `core.py`: `attend`, with the formula and the implementations that agree with it.
- `kinds.py`: `Kind`, how queries, keys and values become a context; full attention, caches for decoding, and settings.
- `multi_head.py`: the `Attention` module with projections, heads and rotary embeddings.
- `local.py`, `linear.py` and `routing.py`: the other kinds; `biased.py`: kinds with a bias on the scores.
- `packing.py`: conversions between packed and padded batches.
"""
