"""Feature columns of texts and of vectors: they encode a value as places of a feature vector."""
