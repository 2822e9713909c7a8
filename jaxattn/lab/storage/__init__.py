"""Files in results folders: files with checksums, the manifest, batch states and checkpoints."""
