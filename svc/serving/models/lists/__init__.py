"""Lists of items that are read again and again while the server runs."""
