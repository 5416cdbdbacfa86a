"""What makes the data that ships with the package; no part of the package itself."""
