"""Pipelines that connect data and models: `Translator`, `Classifier` and `Embedder`."""
