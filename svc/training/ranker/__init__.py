"""Learns the order of the first page from held-out choices, and judges it on users that did not fit it."""
