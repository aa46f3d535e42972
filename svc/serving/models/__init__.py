"""The served models: load, watch, replace and query them."""
