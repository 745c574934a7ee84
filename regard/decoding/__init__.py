"""From a model to its output: search over a step function, and the Translator, where text meets model."""
