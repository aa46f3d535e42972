"""Trials in worker processes: what they share, and how one of them ends."""
