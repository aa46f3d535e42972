"""Publish a model: its header and artifact, and the gate that decides whether it goes live."""
