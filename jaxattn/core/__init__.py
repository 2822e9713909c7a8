"""Utilities shared by all subpackages: errors, settings, named parameters, mapping and the backend."""
