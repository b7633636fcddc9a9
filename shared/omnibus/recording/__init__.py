"""Records of invocations: their schema, dead letters, timelines."""
