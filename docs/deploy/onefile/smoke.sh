#!/usr/bin/env bash
# smoke.sh SVC: keys, data, training, serving and an answer, with nothing but the one file; then its start times.
set -euo pipefail
svc=$(realpath "$1")
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
export XDG_CACHE_HOME=$folder/cache PATH=/usr/bin:/bin NO_COLOR=1
unset PYTHONPATH VIRTUAL_ENV "${!SVC_@}"
cd "$folder"

elapsed() { local from=$EPOCHREALTIME; "$@" >/dev/null; awk "BEGIN {printf \"%.2f s\", $EPOCHREALTIME - $from}"; }
echo "first start: $(elapsed "$svc" --version)"
echo "next start: $(elapsed "$svc" --version)"
echo "help: $(elapsed "$svc" --help)"

"$svc" keygen --kid smoke | sed -n 's/^env_entry=/export /p' > signing.env
. ./signing.env
"$svc" demo --files-only --folder shop >/dev/null
sed -i 's/n_trials: .*/n_trials: 4/' shop/recipes/*.yaml
"$svc" train shop/recipes/books.yaml --quiet 2>train.log || { cat train.log; exit 1; }
"$svc" inspect shop/artifacts/books.svc >/dev/null
rm shop/recipes/books-cold-start.yaml

"$svc" serve --recipes shop/recipes --port 0 --workers 2 2>serve.log &
server=$!
for _ in $(seq 300); do
  port=$(sed -n 's/.*"port": \([0-9]*\).*"event": "serve_started".*/\1/p' serve.log)
  [ -n "$port" ] && break
  kill -0 "$server" || { cat serve.log; exit 1; }
  sleep 0.2
done
answer=$(curl -sSf "http://127.0.0.1:$port/v1/recipes/books:recommend" -d '{"user_id": "u0001", "limit": 3}')
curl -sSf "http://127.0.0.1:$port/console/main.js" >/dev/null
case $answer in *'"item_id"'*) echo "answer: $answer" ;; *) echo "no items: $answer"; exit 1 ;; esac
kill -TERM "$server"
wait "$server"
server=
echo "keygen, train, inspect, serve, recommend and the drain work"
