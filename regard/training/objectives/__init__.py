"""How a translator is taught: teacher forcing, and what may be laid over it. The loop knows nothing of any of this."""
