"""A trained model: the families, its training, and its arrays as a scorer of svc.model."""
