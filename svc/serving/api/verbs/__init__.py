"""The recommendation verbs."""
