#!/bin/bash
# One cell on all GPUs of all nodes of a SLURM job:
#
#   sbatch --nodes 2 --gpus-per-node 4 tools/slurm.sh CONFIG --seed 0 --out /shared/runs
#
# What follows the script goes to `bpg run`. --out, the images and the weights must be on disks that all nodes see.
# On nodes without GPUs take --gpus-per-node out; RANKS says how many processes each gets.
# PYTHON is the interpreter that has bpg, if not `python`.
#
#SBATCH --job-name=bpg
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -euo pipefail

ranks=${RANKS:-${SLURM_GPUS_ON_NODE:-1}}
threads=$(( ${SLURM_CPUS_PER_TASK:-$ranks} / ranks ))
export OMP_NUM_THREADS=$(( threads > 0 ? threads : 1 )) # torchrun would give each process one
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# Two minutes before the time is over: back into the queue, where the same command goes on from the last checkpoint.
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1

# One torchrun a node. A node that fails ends the others, which would wait for it.
srun --kill-on-bad-exit=1 "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes "$SLURM_NNODES" --nproc-per-node "$ranks" \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:$(( 20000 + SLURM_JOB_ID % 20000 ))" \
    -m bpg run "$@" &
wait $! # in the background: a trap waits for what is in the foreground
