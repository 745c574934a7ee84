"""Decoding: beam search, sampling and non-autoregressive decoding. Tensors in, token hypotheses out.

Reading order:

- `stepper.py`: the interface between a model and a search, and `TokenHypothesis`, the result; `constraints.py`:
  `DecodingRequest`, what is decoded; `settings.py`: the settings of a search.
- `beam.py`: beam search; `greedy.py`: greedy search and sampling. Both see a `Stepper` only.
- `autoregressive.py`: `AutoregressiveGenerator`, which `Translator` calls, and `TransformerStepper`; `cpu_blocks.py`:
  fused decoder blocks of a decoding step on a CPU; `generator.py`: the interface of all generators.
- `nat.py`: the generator of non-autoregressive models, with `mask_predict.py`, `ctc.py` and `dag.py`.
- `cuda_graph/`: the same searches on a GPU, in steps that are captured and replayed.
"""
