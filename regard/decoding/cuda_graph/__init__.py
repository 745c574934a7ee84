"""Decoding in static tensors on the device, with steps that are captured as CUDA graphs and replayed.

The results are those of `regard.decoding.autoregressive.search` with a `TransformerStepper`, and of `NATGenerator`.
"""
