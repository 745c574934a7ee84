"""Data sets that need no download: an English-Chinese corpus and rendered shapes."""
