"""Exports: the recommendations of all users as files, by one process, by shards, or by the workers of a cluster."""
