"""Processes that are forked: what they share, and when they end. Training and serving use them."""
