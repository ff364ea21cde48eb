"""Data sets, partitions of them over clients, and federations; import the submodule you need."""
