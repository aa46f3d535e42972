"""Everybody's recommendations as files: one process, shards of many, or the workers of a cluster."""
