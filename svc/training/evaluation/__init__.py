"""Scores of recommenders on held-out interactions, with intervals and breakdowns."""
