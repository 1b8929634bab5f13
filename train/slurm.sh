#!/bin/bash
@directives

set -euo pipefail

@setup

@nodes

# One torchrun agent per node; the first node is where they meet. The port follows the job's number, so
# that jobs sharing a node do not meet each other.
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
port=$((20000 + SLURM_JOB_ID % 20000))
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun has not inherited it since Slurm 22.05

srun --nodes="$nodes" --ntasks="$nodes" --kill-on-bad-exit=1 \
  python -m torch.distributed.run \
  --nnodes="$nodes" --nproc-per-node=@ranks --max-restarts=3 \
  --rdzv-backend=c10d --rdzv-endpoint="$head_node:$port" --rdzv-id="$SLURM_JOB_ID" \
  -m feedline.train.main @dataset --run-dir "$run" --resume auto \
  @training

# Afterwards: seff $SLURM_JOB_ID, and the same figures at the end of the run's own output.
