"""Convert models from and to other libraries, one module per format."""
