"""Evaluate models on held-out interactions: rankings, metrics, intervals, and comparisons with the live model."""
