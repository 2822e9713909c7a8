"""Files in results folders: checksummed files, the study, records of batches, and checkpoints."""
