"""One request, its checks and failures, and the state that all requests share."""
