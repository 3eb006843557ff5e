"""Actor and critic, and what they learn from."""
