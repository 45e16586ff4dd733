"""Sessions and agents: what joins store, kernel, surface, view and model into one loop."""
