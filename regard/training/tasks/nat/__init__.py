"""Teaching a model that writes all tokens at once."""
