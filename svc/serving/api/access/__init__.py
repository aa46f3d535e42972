"""Who may ask: API keys, policies, hosts and origins."""
