"""What agent and operator agree on: the contract (`v1`), names and paths, bounds, how to open each end."""
