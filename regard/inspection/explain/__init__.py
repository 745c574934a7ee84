"""Explain one word of a translation: attribution to source and prefix, lenses, activation patching, ranked heads."""
