"""Write the data file of the built-in corpus: `python -m tools.corpus`."""

import lzma

from regard.data.builtin.corpus import PATH

from . import write_corpus

with lzma.open(PATH, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8", newline="\n") as file:
    write_corpus(file)
print(f"Wrote {PATH} ({PATH.stat().st_size:,} bytes).")
