"""Decoding in static tensors on the device, with steps that are captured as CUDA graphs and replayed.

The results are those of `search_tokens` with a `TransformerStepper`, and of `NATGenerator`.
"""
