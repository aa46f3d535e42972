"""The table of endpoints, and the route of a path."""
