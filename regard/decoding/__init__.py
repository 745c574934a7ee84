"""Decoding: beam search, sampling and non-autoregressive decoding. Tensors in, token hypotheses out."""
