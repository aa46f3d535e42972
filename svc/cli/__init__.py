"""The `svc` command."""
