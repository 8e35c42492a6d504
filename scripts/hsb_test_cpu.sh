#!/usr/bin/env bash
# Takes the options of the known test script: with --emulate the FPGA is software, else --fpga-ip names a real one.
set -euo pipefail
cd "$(dirname "$0")/.."

command=hw-test
for option; do
  if [ "$option" = --emulate ]; then command=emulate; fi
done

options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --emulate) ;;
    # Of no meaning to emulate, which builds always and sets up what its backend needs.
    --build | --setup-network) [ $command = emulate ] || options+=("$1") ;;
    --mtu) [ $command = emulate ] || options+=("$1" "${2:?--mtu needs a number}"); shift ;;
    --device) if [ $command = emulate ]; then options+=(--backend); else options+=(--device); fi ;;
    *) options+=("$1") ;;
  esac
  shift
done

exec "${CARGO:-cargo}" xtask "$command" "${options[@]}"
