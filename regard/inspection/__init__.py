"""Inspect attention: probe and intervene, measure maps, alignments and importance, and draw them."""
