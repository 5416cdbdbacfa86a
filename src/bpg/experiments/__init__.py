"""Experiments: a stream, methods and seeds make cells; a cell is run once and leaves its records."""
