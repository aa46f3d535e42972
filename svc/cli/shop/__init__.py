"""The bookshop of `svc demo`: its data, recipes and requests."""
