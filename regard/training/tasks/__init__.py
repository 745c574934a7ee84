"""What can be trained: translation, non-autoregressive translation, classification, CroCo."""
