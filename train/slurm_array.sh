#!/bin/bash
@directives

set -euo pipefail

@setup

# Each job of the array does one task of the study, whichever is open; one that finds none ends at once. A job that is
# requeued takes its own task up again: the study knows that it is the same job, started anew.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun has not inherited it since Slurm 22.05

srun --ntasks=1 --kill-on-bad-exit=1 \
  python -m feedline.cli.main @verb @dataset --jobs 1 --at-most 1 --ranks @ranks \
  @training
