"""The recipe: its schema, and its checks before anything runs."""
