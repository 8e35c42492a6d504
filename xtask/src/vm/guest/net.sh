#!/bin/sh
# vm-net none|lo|veth|netns [MTU]: the kernel's soft-RoCE devices of this guest, in place of those that an earlier
# call made.
#   none   no device
#   lo     rxe0 on lo, 127.0.0.1
#   veth   rxe_a on va, 10.0.0.1, and rxe_b on vb, 10.0.0.2: the two ends of a veth pair in one namespace
#   netns  rxe_a on va, 10.0.0.1; vb, 10.0.0.2, lies in the namespace "far" and has no device
set -eu
PATH=/usr/bin
kind=${1:-}
mtu=${2:-9000}

# Busybox has an ip of its own, which a shell may prefer.
ip() { /usr/bin/ip "$@"; }

clear_all() {
  for dev in rxe0 rxe_a rxe_b; do
    [ ! -e /sys/class/infiniband/$dev ] || rdma link delete $dev
  done
  # The pair first: a namespace takes its end of it away at some later time.
  [ ! -e /sys/class/net/va ] || ip link delete va
  [ ! -e /run/netns/far ] || ip netns delete far
}

# pair [NAMESPACE]: va and vb, the latter in the namespace, each with the other as permanent neighbour: nobody waits for ARP.
pair() {
  for conf in all default; do
    echo 0 >/proc/sys/net/ipv4/conf/$conf/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$conf/accept_local
  done
  ip link add va mtu "$mtu" type veth peer name vb mtu "$mtu"
  a=$(cat /sys/class/net/va/address) b=$(cat /sys/class/net/vb/address)
  [ $# = 0 ] || { ip netns add "$1"; ip link set vb netns "$1"; set -- -netns "$1"; ip "$@" link set lo up; }
  ip addr add 10.0.0.1/24 dev va
  ip link set va up
  ip "$@" addr add 10.0.0.2/24 dev vb
  ip "$@" link set vb up
  ip neigh replace 10.0.0.2 lladdr "$b" dev va nud permanent
  ip "$@" neigh replace 10.0.0.1 lladdr "$a" dev vb nud permanent
}

# device NAME INTERFACE ADDRESS: returns once the address has its GID.
device() {
  rdma link add "$1" type rxe netdev "$2"
  tries=0
  until gids "$1" | grep -qF "::ffff:$3 "; do
    tries=$((tries + 1))
    [ $tries -lt 1000 ] || { echo "$1 has no GID for $3:"; gids "$1"; exit 1; }
    sleep 0.01
  done
  gids "$1"
}

# The GID table of a device, empty entries left out.
gids() {
  port=/sys/class/infiniband/$1/ports/1
  index=0
  while [ -e $port/gids/$index ]; do
    read -r gid <$port/gids/$index
    case $gid in
      0000:0000:0000:0000:0000:0000:0000:0000) ;;
      0000:0000:0000:0000:0000:ffff:*) row "$1" "$(ipv4 "${gid#*:ffff:}")" ;;
      *) row "$1" "$gid" ;;
    esac
    index=$((index + 1))
  done
}
row() { echo "$1 gid $index $2 $(cat $port/gid_attrs/types/$index) $(cat $port/gid_attrs/ndevs/$index)"; }

# ::ffff:10.0.0.1 for 0a00:0001.
ipv4() {
  high=$((0x${1%:*})) low=$((0x${1#*:}))
  echo "::ffff:$((high >> 8)).$((high & 255)).$((low >> 8)).$((low & 255))"
}

case $kind in
  none) clear_all ;;
  lo)
    clear_all
    device rxe0 lo 127.0.0.1
    ;;
  veth)
    clear_all
    pair
    device rxe_a va 10.0.0.1
    device rxe_b vb 10.0.0.2
    ;;
  netns)
    clear_all
    pair far
    device rxe_a va 10.0.0.1
    ;;
  *)
    echo "usage: vm-net none|lo|veth|netns [MTU]" >&2
    exit 2
    ;;
esac
