"""What serving computes: ids, features, scorers, rankings, and the payload that holds them."""
