"""Utilities that all subpackages share: errors, settings, named parameters, mapping and the backend."""
