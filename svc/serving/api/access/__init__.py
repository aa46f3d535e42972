"""Access control: API keys, their policies, and hosts."""
