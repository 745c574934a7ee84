"""Training losses of translators."""
