"""Training of autoregressive translators."""
