# Read by the bash of every `!` line in a headless run ($BASH_ENV). GoNB goes on after a shell
# line that fails; this makes it say so on standard error, where the run sees it.
unset BASH_ENV
trap 'status=$?; [ $status -eq 0 ] || echo "the shell line ended with status $status" >&2' EXIT
