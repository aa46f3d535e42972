"""The HTTP interface: endpoints, checks, request and response bodies."""
