#!/bin/bash
# A study as an array of jobs that share no folder: sbatch slurm.sh sweeps/quickstart.toml s3://BUCKET/NAME
# Eight jobs; for two, sbatch --array=0-1 slurm.sh ...: every job is one shard, and the array begins at 0.
#SBATCH --job-name=jaxattn
#SBATCH --array=0-7
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120
#SBATCH --open-mode=append
#SBATCH --output=jaxattn-%A-%a.log
sweep=${1:?give a sweep file} place=${2:?give an address, such as s3://BUCKET/NAME}
share=$((SLURM_ARRAY_TASK_ID + 1))/$SLURM_ARRAY_TASK_COUNT
# Copies of what is in the bucket go to the disk of the node, and end with the job.
export JAXATTN_CACHE=${TMPDIR:-/tmp}/jaxattn-$SLURM_JOB_ID
srun --kill-on-bad-exit=0 jaxattn run "$sweep" --out "$place" --shard "$share" --quiet
status=$?
# 130: stopped by the time limit or by a preemption, and saved; the rest in another job.
if [ $status -eq 130 ]; then
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit $status
