"""Feature columns of texts and of vectors: they encode a value as entries of a feature vector."""
