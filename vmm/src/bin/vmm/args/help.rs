pub(crate) const HELP: &str = "\
Boots a Linux kernel or a disk in a VM on KVM.

Usage: vmm --kernel FILE [OPTION]...
       vmm --firmware FILE --disk path=FILE [OPTION]...

  --firmware FILE                  BIOS or EFI, such as /usr/share/seabios/bios-256k.bin; its console is the
                                   serial port, and it boots the first bootable disk
  --nvram FILE                     variables of an EFI firmware, which is named by --firmware; written to. Start
                                   with a copy of its variable store, such as /usr/share/OVMF/OVMF_VARS_4M.fd
  --kernel FILE                    bzImage as a distribution ships it, or an ELF kernel
  --initrd FILE                    initial ramdisk
  --cmdline TEXT                   kernel command line (default: console=ttyS0)
  --cpus N                         vCPUs, 1 to 254 (default: 1)
  --memory SIZE                    RAM: 512M, 4G, a bare number counts MiB (default: 256M)
  --disk path=FILE[,format=FORMAT][,readonly=on][,bus=BUS][,queues=N][,cache=MODE][,block=N]
                                   disk image or block device, raw (default) or qcow2 without a backing file, on
                                   the bus virtio (default), sata or scsi; on virtio with several queues (1 to
                                   32) and blocks of N bytes (512 to 2097152, default 512 in physical ones of
                                   4096); may be given several times. A write completes when the host's page cache
                                   has it (MODE writeback, the default), when it is durable (writethrough), or
                                   when the device has it, past the page cache (none)
  --cdrom path=FILE[,bus=BUS]      image in a CD/DVD drive on the bus sata (default) or scsi; may be given
                                   several times
  --net tap=NAME[,mac=MAC][,queues=N][,vhost=on]
                                   NIC on an existing tap device, which was made with multi_queue where there are
                                   several queues (1 to 8); may be given several times. The kernel moves its
                                   queues (vhost-net) where it can, or must (vhost=on), or shall not (vhost=off)
  --net stream=PATH[,mac=MAC]      NIC whose frames go to a process that listens at a unix socket and speaks the
                                   protocol of QEMU's -netdev stream, such as passt (passt --socket PATH)
  --serial stdio                   serial port on this terminal (default); Ctrl+] leaves, Ctrl+^ p presses the
                                   power button, Ctrl+^ b sends a break, Ctrl+^ z pauses the VM and resumes it,
                                   Ctrl+^ s saves it, Ctrl+^ twice is a Ctrl+^ for the guest
  --serial file=FILE               serial output into a file
  --serial socket=FILE             serial port on a unix socket, which is created
  --vnc ADDRESS                    serve the display over VNC at unix:PATH or 127.0.0.1:PORT
  --video ADAPTER                  display adapter: bochs (default) or virtio
  --input KIND                     a virtio tablet (there is one with --vnc) or keyboard, beside the PS/2 mouse
                                   and keyboard that --vnc brings; may be given several times
  --balloon                        a memory balloon: the host gets memory back that the guest does not use
  --panic MODEL                    a pvpanic device, by which the guest reports that its kernel panicked: isa or
                                   pvpanic (on PCI); may be given several times
  --watchdog ACTION                a watchdog (i6300esb), which does reset, poweroff or shutdown when the guest does
                                   not answer it
  --exit-on-triple-fault           a vCPU that triple-faults ends the VM, where it resets a PC
  --vsock cid=N                    a socket device with a context ID from 3, which no other guest of the host has;
                                   vhost-vsock, a module of the host's kernel, serves it
  --fs tag=NAME,socket=PATH        a file system of the host, which the guest mounts by its tag (mount -t virtiofs);
                                   a process that waits at the socket shares it (virtiofsd --socket-path PATH);
                                   may be given several times
  --kvm-fd N                       an open /dev/kvm that this program inherits; it need not be allowed to open one
  --save DIR                       where the VM is saved by Ctrl+^ s or SIGUSR2, which then ends this program. The
                                   directory is created. Disks are not part of it: they have to stay as they are
  --load DIR                       start with a VM that was saved; all options that the guest can see have to be as
                                   they were. The directory may be loaded again only with the disks of that time,
                                   and its files have to stay as they are as long as the VM runs
  --help, --version

The signal SIGUSR1 presses the power button; SIGUSR2 saves the VM; SIGTSTP pauses it: neither its RAM nor its disks
change until SIGCONT resumes it. SIGINT, SIGTERM and SIGHUP end the VM.

Set VMM_LOG to error, warn, info, debug or trace to choose what is logged (default: warn).

Exit status:
  0  the guest powered off
  1  an error, or a signal
  3  the guest crashed: its kernel panicked and has a pvpanic device, its watchdog expired, whose action is
     poweroff, or a vCPU triple-faulted and that ends the VM
  4  the guest is in a reset loop: it resets itself again and again, and shows nothing new
  5  left with Ctrl+]
  6  the VM was saved
";
