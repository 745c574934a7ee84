"""Fused and quantised operations next to their plain references; dispatch.py selects the implementation.

Reading order:

- `dispatch.py`: every condition under which a kernel or a fused block runs.
- `linear.py`, `add_norm.py`, `dropout.py`, `rotary.py` and `embedding.py`: the operations of a block, each with its
  reference. `linear_backward.py` has the backward pass of linear layers in mixed precision.
- `varlen_attention.py`, `decode_attention.py`, `linear_attention.py`, `key_ranges.py` and `cluster_sort.py`: attention.
- `cross_entropy.py`, `consistency_loss.py`, `ctc.py` and `dag.py`: losses, and the searches that belong to them.
- `fused.py`: whole blocks for training on a GPU; `triton/`: all kernels.
"""
