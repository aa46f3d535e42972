"""The shop of `svc demo`: its data, its files and its requests."""
