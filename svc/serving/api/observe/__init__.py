"""Records of requests: spans and trace context."""
