#!/bin/bash
#SBATCH --job-name=vn --nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=16
#SBATCH --time=12:00:00 --requeue --open-mode=append --signal=B:TERM@300
# Train on several machines, and go on after every preemption or time limit:
#     sbatch examples/slurm.sh runs/NAME classification --data modelnet40 --preset fast-vn-dgcnn-z --device cuda
# The signal comes five minutes before the end (or at a preemption): vn train writes a checkpoint, and the job is queued
# again. The same command without SLURM, on one machine: bash examples/slurm.sh ...
run=${1:?usage: sbatch slurm.sh RUN TASK [flags of vn train]}
shift
if [ -e "$run/config.json" ]; then set -- --resume "$run"; else set -- "$@" --out "$run"; fi

launch=(torchrun --nproc-per-node "${VN_PROCESSES:-gpu}")
if [ -n "$SLURM_JOB_ID" ]; then
    head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    launch=(srun --kill-on-bad-exit=1 "${launch[@]}" --nnodes "$SLURM_NNODES"
        --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:29500")
fi
"${launch[@]}" -m vector_neurons train "$@" &
job=$!
trap 'stopped=yes; kill -TERM $job' TERM
wait $job
wait $job # the first one ends when the signal comes, the second one when the training has ended
code=$?
if [ -n "$stopped" ] && [ -n "$SLURM_JOB_ID" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
