"""Scripts for developers: code metrics, the corpus generator, screenshots."""
