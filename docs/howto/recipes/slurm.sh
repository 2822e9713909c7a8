#!/bin/bash
# Job array that runs one shard of a study per job: sbatch slurm.sh sweeps/quickstart.toml s3://BUCKET/NAME
# The default is eight jobs. For two jobs: sbatch --array=0-1 slurm.sh ... The array must start at 0.
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
# The local copy of the bucket is on the disk of the node and is only used by this job.
export JAXATTN_CACHE=${TMPDIR:-/tmp}/jaxattn-$SLURM_JOB_ID
srun --kill-on-bad-exit=0 jaxattn run "$sweep" --out "$place" --shard "$share" --quiet
status=$?
# Status 130: preempted or stopped by the time limit, after saving a checkpoint. Requeue the job to resume.
if [ $status -eq 130 ]; then
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit $status
