"""Models that leave and models that come in: written in the formats of others, read from them, and always verified."""
