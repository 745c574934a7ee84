"""Text: readers, tokenizers, the built-in corpus, batches by tokens. Knows no model."""
