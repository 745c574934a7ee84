"""Look inside: what every attention saw, and pictures of it."""
