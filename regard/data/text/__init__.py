"""Text: readers, tokenizers, the built-in corpus, batches by tokens. Knows no model."""

from regard.data.text import sentencepiece as sentencepiece  # so that `Tokenizer.load` reads its files
