"""The families of recommenders: what svc knows of each, and its own variants of irspack's classes."""
