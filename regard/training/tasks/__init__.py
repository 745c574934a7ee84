"""Tasks: how each kind of model is trained."""
