"""What several methods share, once."""
