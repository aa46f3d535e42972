"""One request: the state that all requests share, its checks and its failures."""
