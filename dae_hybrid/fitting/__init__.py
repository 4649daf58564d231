"""Fits to data, and the accuracy of their estimates."""
