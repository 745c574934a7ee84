"""One model, one file."""
