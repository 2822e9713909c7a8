"""What all rooms stand on: errors, settings, parameters by name, mapping, the backend."""
