"""Where interactions, features and metadata come from."""
