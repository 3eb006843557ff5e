"""Figures and tables: pure functions from data to picture or rows."""
