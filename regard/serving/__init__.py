"""Trained folders put to work over HTTP: one process that speaks, and one for each model that computes."""
