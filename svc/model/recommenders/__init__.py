"""Scorers, one class for each family of recommenders. A scorer holds only the arrays that ranking needs."""
