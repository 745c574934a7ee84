"""What the page shows of a model, a file a section: questions and answers are plain, and no section knows HTTP."""
