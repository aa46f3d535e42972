"""The endpoints behind quart: the console, the API reference, and JSON endpoints other than probes and verbs."""
