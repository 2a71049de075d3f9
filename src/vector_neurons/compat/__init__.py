"""Other people's names and axis orders over this package's layers, for code that moves here one import at a time."""
