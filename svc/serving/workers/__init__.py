"""Several server processes that share one verified model: `svc serve --workers N`."""
