"""Train a recommender on interactions and write it as a signed artifact."""
