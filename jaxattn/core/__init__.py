"""Utilities shared by all subpackages: errors, settings, named parameters, parallel maps and devices."""
