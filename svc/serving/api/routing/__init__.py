"""The table of endpoints, and what the path of a request leads to."""
