"""Lists of items that are read at intervals while the server runs."""
