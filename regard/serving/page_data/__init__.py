"""Contents of the page's sections, computed in the workers from plain request fields, and packed as in `packet`."""
