# How steps run: in order or beside each other, with what each took, in a table at the end.

# Rows of the table: depth, name, seconds, seconds of processors.
rows=()
current=start
declare -A beside

note() { printf '    %s\n' "$*"; }

# quietly LOG COMMAND...: show the output of a command only if it fails.
quietly() {
  local log=$scratch/$1
  shift
  "$@" >"$log" 2>&1 || { cat "$log"; return 1; }
}

# processor_time VARIABLE: what this shell and the processes that have ended below it took, in
# milliseconds, without what ran beside it. `times` has to run in this shell itself: a subshell
# starts from nothing.
processor_time() {
  local file=$scratch/times-$BASHPID
  { times; cat "$scratch/beside-$BASHPID-"* 2>/dev/null || true; } >"$file"
  printf -v "$1" '%s' "$(awk '$1 == "beside" {sum -= $2; next}
    {for (i = 1; i <= 2; i++) {split($i, t, /[ms]/); sum += 60000 * t[1] + 1000 * t[2]}}
    END {printf "%d", sum}' "$file")"
}

# measured DEPTH NAME COMMAND...: run a command, and add a row. The time of what has rows of its own
# is theirs.
measured() {
  local depth=$1 name=$2 started=$SECONDS before after row=${#rows[@]} others=$told
  rows+=("")
  processor_time before
  "${@:3}"
  processor_time after
  rows[row]="$depth|$name|$((SECONDS - started))|$((after - before - (told - others)))"
  told=$((others + after - before))
}
told=0

# step NAME COMMAND...: run one step; the first that fails ends the run.
step() {
  local started=$SECONDS
  current=$1
  printf '\n=== %s\n' "$current"
  measured 0 "$@"
  printf -- '--- %s: %d s\n' "$current" "$((SECONDS - started))"
}

# in_turn COMMAND...: run them one after another, each with a row of its own.
in_turn() {
  local command
  for command in "$@"; do measured 1 "$command" "$command"; done
}

# beside NAME COMMAND...: start a command in the background, in a process group of its own. Steps
# that mostly wait leave a core idle.
beside() {
  local shell=$BASHPID
  set -m
  in_background "$shell" "$@" >"$scratch/$1.log" 2>&1 &
  set +m
  beside[$1]=$!
}

# in_background SHELL NAME COMMAND...: leaves its rows for `await` to read, and its time for
# `processor_time` of that shell.
in_background() {
  local whole
  rows=() told=0
  measured 1 "${@:2}"
  printf '%s\n' "${rows[@]}" >"$scratch/$2.rows"
  processor_time whole
  { cat "$scratch/beside-$BASHPID-"* 2>/dev/null || true; } |
    awk -v whole="$whole" '{whole += $2} END {print "beside", whole}' >"$scratch/beside-$1-$2"
}

# await NAME: show what it said once it has ended, and fail if it did.
await() {
  local status=0 row
  wait "${beside[$1]}" || status=$?
  cat "$scratch/$1.log"
  if [ -e "$scratch/$1.rows" ]; then
    while IFS= read -r row; do rows+=("$row"); done <"$scratch/$1.rows"
  fi
  return "$status"
}

# table: what each step took. Those that are indented ran within the step above, or beside others.
table() {
  printf '\n%-58s %8s %8s\n' "step" "wall s" "CPU s"
  printf '%s\n' "${rows[@]}" | awk -F'|' 'NF == 4 {
    printf "%-58s %8d %8.0f\n", sprintf("%*s%s", 2 * $1, "", $2), $3, $4 / 1000; cpu += $4 / 1000}
    END {printf "%-58s %8s %8.0f\n", "all", "'"$SECONDS"'", cpu}'
}
