#!/bin/sh
# The guest's first process: drivers, shared folders, network, the command, its exit status.
export PATH=/usr/bin HOME=/root
mount -t proc proc /proc
. /job/facts
say() { echo "[vm $TOKEN] $*"; }
uptime() { read -r up _ </proc/uptime && echo "$up"; }

# Waits until everything is sent, then lets QEMU end with the status; its port takes seven bits.
leave() {
  sync
  [ -e /dev/ttyS1 ] && { echo "[vm $TOKEN] end" >/dev/ttyS1; stty -F /dev/ttyS1 -echo; }
  say "exit $1"
  stty -F /dev/ttyS0 -echo
  printf "\\$(printf %03o $(($1 & 127)))" | dd of=/dev/port bs=1 seek=244 2>/dev/null
  sleep 10
  poweroff -f
}
broken() { say "broken $*"; leave 1; }

say "hello $(uptime)"
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs run /run
mount -t sysfs sys /sys
stty -F /dev/ttyS1 raw -echo || broken "no second serial port"
exec 4>/dev/ttyS1
ulimit -l unlimited
/usr/bin/ip link set lo up
for module in $(cat /modules/order); do
  insmod "/modules/$module.ko" || broken "cannot load $module"
done

# share TAG FOLDER ro|rw: a folder of the host, where the host has it.
share() {
  mkdir -p "$2"
  mount -t 9p -o "$3,trans=virtio,version=9p2000.L,msize=512000,cache=loose" "$1" "$2" || broken "cannot mount $2"
}
. /job/shares

vm-net "$NET" "$MTU" >/tmp/vm-net 2>&1 || broken "$(tr '\n' ';' </tmp/vm-net)"
while read -r line; do say "note $line"; done </tmp/vm-net

if [ "$INTERACTIVE" = 1 ]; then
  [ -z "$WINDOW" ] || stty -F /dev/ttyS0 $WINDOW
  say "ready $(uptime)"
  setsid cttyhack /job/run
else
  stty -F /dev/ttyS0 raw -echo
  say "ready $(uptime)"
  # A session of its own: the serial ports shall be nobody's controlling terminal.
  /job/run </dev/null >&4 2>/dev/ttyS0 4>&-
fi
status=$?
cd /
umount -a -t 9p 2>/dev/null
leave $status
