"""The models being served: loading, watching, replacing and asking them."""
