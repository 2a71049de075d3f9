"""Trained networks in use: exported to files that run without this library."""
