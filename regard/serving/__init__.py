"""HTTP server for trained models: one process answers requests, worker processes run the models."""
