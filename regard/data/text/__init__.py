"""Text: readers, cleaning, tokenizers and tokenised corpora. Knows no model.

From text files to the tokens of a batch:

- `readers`: sentence pairs from files (`compression`, `interchange`; `writers` for the reverse). `corpus`: the pairs of
  all training files in shards. `cleaning`: filters of noisy pairs.
- `tokenizer`: text to token ids and back. `subwords` learns its units; `bpe_dropout` segments words at random;
  `sentencepiece` and `wordpiece` are the tokenizers of imported models.
- `encoding`: applies a tokenizer to a whole corpus. `tokens`: the resulting token ids, in memory or on disk.

Besides: `languages` (codes, names, detection), `sentences` (sentence splitting), and for given terms `glossary`,
`inflection` and `annotation`.
"""

from regard.data.text import sentencepiece as sentencepiece  # so that `Tokenizer.load` reads its files
