"""Learn the order of the first page from held-out choices, and evaluate it by cross-validation over users."""
