"""The learned world: what is seen (observation) and what follows (dynamics)."""
