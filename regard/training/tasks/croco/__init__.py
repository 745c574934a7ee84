"""Training of CroCo models."""
