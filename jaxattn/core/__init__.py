"""Shared foundations of all subpackages: errors, settings, named parameters, mapping and the backend."""
