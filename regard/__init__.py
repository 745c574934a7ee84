"""regard: the Transformer, whole."""
