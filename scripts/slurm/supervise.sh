# Sourced by train.sbatch and sweep.sbatch: runs `train` inside a job so that preemption and time
# limits cost at most the step that is running.
#
# Slurm's signal reaches this batch shell, not the ranks: it is handed on to srun or mpirun, which
# hand it on to every rank; `train` writes a checkpoint and ends with exit code 75; the job is put
# back in the queue and resumes there. Exit codes 2 (bad input) and 3 (does not fit) end the job:
# they would only come again.

# launch COMMAND…: by srun, or by mpirun where SPILLWAY_LAUNCH says so. Sets `code`.
launch() {
  local line=()
  case ${SPILLWAY_LAUNCH:-srun} in
    srun) line=(srun --mpi=pmix) ;;
    mpirun) line=(mpirun --bind-to none) ;;
    *)
      echo "slurm: SPILLWAY_LAUNCH is ${SPILLWAY_LAUNCH}, expected srun or mpirun" >&2
      code=2
      return
      ;;
  esac
  told=0
  "${line[@]}" "$@" &
  child=$!
  # mpirun kills its ranks on TERM, so that is handed on as USR1 too.
  trap 'again=1 told=1; echo "== stopping at a checkpoint" >&2; kill -USR1 $child 2>/dev/null' USR1 TERM
  again=1
  while [ $again = 1 ]; do # a trapped signal makes `wait` come back early
    again=0 code=0
    wait $child || code=$?
  done
  trap '' USR1 TERM
  # A launcher that was told before it listened dies of the signal; that is a wish to stop as well.
  if [ $told = 1 ] && [ $code -gt 4 ]; then code=75; fi
}

# Puts the job back in the queue: by exit code where the cluster lists 75 in RequeueExit (slurm.conf),
# else through scontrol, unless somebody has cancelled it. Does not return.
requeue() {
  local listed low high
  IFS=, read -ra listed < <(scontrol show config | sed -n 's/^RequeueExit *= *//p')
  for range in "${listed[@]}"; do
    low=${range%-*} high=${range#*-}
    if [[ $low =~ ^[0-9]+$ && $high =~ ^[0-9]+$ ]] && [ "$low" -le 75 ] && [ "$high" -ge 75 ]; then exit 75; fi
  done
  if scontrol show job --oneliner "$SLURM_JOB_ID" | grep -q 'JobState=RUNNING'; then
    trap - TERM
    scontrol requeue "$SLURM_JOB_ID" && sleep 60 # until Slurm ends this script
  fi
  exit 75
}
