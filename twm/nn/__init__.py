"""Blocks that know nothing of reinforcement learning."""
