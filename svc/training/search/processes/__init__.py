"""Trials in worker processes: start, shared memory and end."""
