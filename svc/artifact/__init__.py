"""Signed files: their bytes, keys, stores and locks. Nothing here knows what a payload means."""
