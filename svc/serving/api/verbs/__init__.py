"""The four recommendation verbs."""
