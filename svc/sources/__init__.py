"""Sources of interactions, features and metadata: files, databases and tables in memory."""
