#!/bin/sh
# svc in one file. The first start unpacks it into the user's cache folder; every later one runs it from there.
set -eu
cache=${XDG_CACHE_HOME:-${HOME:?set HOME or XDG_CACHE_HOME: svc unpacks itself below it once}/.cache}
home=$cache/svc-onefile/@DIGEST@
if [ ! -x "$home/svc" ]; then
  mkdir -p "$cache/svc-onefile"
  fresh=$(mktemp -d "$cache/svc-onefile/.new-XXXXXX")
  trap 'rm -rf "$fresh"' EXIT
  tail -n +@LINES@ "$0" | tar -xzf - -C "$fresh"
  mv -T "$fresh" "$home" 2>/dev/null || [ -x "$home/svc" ] # another start was faster
  trap - EXIT
  rm -rf "$fresh"
fi
exec "$home/svc" "$@"
