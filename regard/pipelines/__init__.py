"""Images and the models that tell them apart: the only place where they meet outside of training."""
