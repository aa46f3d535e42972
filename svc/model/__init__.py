"""The trained model and its ranking: ids, features, scorers, rankings, and the payload that stores them."""
