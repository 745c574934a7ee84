"""Two views: one completed from the other, and what a model that can do that is trained further for."""
