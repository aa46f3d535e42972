"""From a fetched table to clean interactions, features, splits and weights."""
