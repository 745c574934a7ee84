"""Mutation testing: change one line of regard/ and check that a test fails."""
