"""Search in memory of fixed size, all of it on the device: what a GPU can do again and again without the host.

It finds what `search` finds with `TransformerStepper`, which stays the meaning of it. There, hypotheses are rows
that grow and sentences leave the batch; here nothing ever changes its size or its place, so that one step can be
recorded once (a CUDA graph) and replayed for every step, whatever the host is doing.

`conditions.py` says when it is taken, `search.py` drives it, `program.py` is one recorded step of one shape, which is
`reader.py`, the model's part, and `board.py`, the beam's. `canvases.py` is the same for models that write all tokens at
once, and `recording.py` what both have in common.
"""
