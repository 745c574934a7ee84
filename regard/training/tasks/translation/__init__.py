"""Translation as a family of runs: parallel text in, a translator out."""
