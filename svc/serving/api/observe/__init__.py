"""What is recorded of requests: spans, trace context and the access log."""
