"""`regard bench`: speed and memory of models, and of other libraries with the same weights."""
