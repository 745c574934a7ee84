"""Images: what a model sees."""
