"""The recipe: what a user wants, checked before anything runs."""
