#!/bin/busybox sh
# The first process of a virtual machine: mounts file systems, loads modules, then runs `xtask vm inside` on the console.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /var/tmp /root /mnt
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root RUST_BACKTRACE=0
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
ifconfig lo up 2>/dev/null
while read -r module; do insmod "/modules/$module" || echo "vm: $module cannot be loaded"; done < /modules/order
mount -t configfs configfs /sys/kernel/config 2>/dev/null
xtask vm inside $(cat /scenario)
status=$?
[ $status = 0 ] || dmesg | tail -n 20
echo "vm: status $status"
poweroff -f
