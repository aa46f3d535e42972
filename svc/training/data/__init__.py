"""Prepare the data of a training: clean interactions, encoded features, splits and weights, from fetched tables."""
