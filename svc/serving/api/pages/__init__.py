"""Everything but probes and verbs: the console, the API reference and the JSON endpoints behind quart."""
