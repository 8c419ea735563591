# Filled in as capabilities land.
