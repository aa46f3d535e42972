"""Options, progress, signals, keys and versions for several commands."""
