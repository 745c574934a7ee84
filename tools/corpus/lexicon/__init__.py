"""The words of the grammar, in both languages."""
