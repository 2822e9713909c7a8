"""What a results folder is made of: files with checksums, the manifest, states of batches, checkpoints."""
