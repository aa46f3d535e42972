"""Columns of features: they encode texts and vectors as places of a feature vector."""
