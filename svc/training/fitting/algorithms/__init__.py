"""The table of algorithms, and svc's variants of irspack's recommenders."""
