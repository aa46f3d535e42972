"""Forked processes: their shared memory and their ends. Training and serving use them."""
