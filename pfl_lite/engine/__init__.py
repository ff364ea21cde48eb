"""Rounds, local SGD, mappings, metrics: everything about training that is not one method."""
