"""What a results folder is made of: files with checksums, the manifest, the marks of batches, checkpoints."""
