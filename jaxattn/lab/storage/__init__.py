"""Files in results folders: checksummed files, the manifest, commit records of batches, and checkpoints."""
