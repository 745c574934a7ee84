"""Pipelines that connect data and models: `Translator`, `Classifier` and `Embedder`.

Reading order:

- `translator.py`: `Translator`, which splits texts into sentences and joins their translations; `hypothesis.py`: its
  results.
- `sentence_translator.py`: its base class, which loads models, tokenises sentences, and generates in batches.
- Parts of a translation, each used on request: `constraints.py`, glossaries (`term_search.py`, `term_automaton.py`),
  `translation_memory.py`, `mbr.py`, and confidences and flags (`quality.py` with the files it imports).
- `translate_document.py`: documents; `external.py`: generators that run in another library.
- `classifier.py` and `embedder.py`: the other pipelines, which need none of these.
"""
