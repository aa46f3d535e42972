#!/bin/sh
# svc in one file. The first start unpacks it into the user's cache folder; every later one runs it from there.
set -eu
cache=${XDG_CACHE_HOME:-${HOME:?set HOME or XDG_CACHE_HOME: svc unpacks itself below it once}/.cache}
home=$cache/svc-onefile/@DIGEST@
if [ ! -x "$home/svc" ]; then
  mkdir -p "$cache/svc-onefile"
  # What a first start left that was killed: none takes ten minutes.
  find "$cache/svc-onefile" -maxdepth 1 -name '.new-*' -mmin +10 -exec rm -rf {} + || :
  fresh=$(mktemp -d "$cache/svc-onefile/.new-XXXXXX")
  trap 'rm -rf "$fresh"' EXIT
  trap 'exit 143' HUP INT TERM
  tail -n +@LINES@ "$0" | tar -xzf - -C "$fresh"
  mv -T "$fresh" "$home" 2>/dev/null || [ -x "$home/svc" ] # another start was faster
  trap - EXIT HUP INT TERM
  rm -rf "$fresh"
  # Other versions that no process runs.
  for other in "$cache"/svc-onefile/*; do
    [ "$other" = "$home" ] || readlink /proc/[0-9]*/exe | grep -qF "$other/" || rm -rf "$other" || :
  done
fi
exec "$home/svc" "$@"
