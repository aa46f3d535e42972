"""Learn the order of the first page from held-out choices, and judge it on users that did not fit it."""
