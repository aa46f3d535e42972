"""One scorer for each family of recommenders, over plain arrays."""
