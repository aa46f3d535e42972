"""HTTP connections: accept, read, answer and close."""
