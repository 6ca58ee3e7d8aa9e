use vireo_vmconfig::DiskDevice;

use super::*;

fn words(line: &str) -> Result<Command, ArgsError> {
    parse(std::iter::once("vmm").chain(line.split_whitespace()).map(OsString::from))
}

fn run(line: &str) -> Args {
    match words(line).unwrap() {
        Command::Run(args) => *args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_kernel_is_enough() {
    let args = run("--kernel k");
    assert_eq!((args.cpus.count(), args.memory.bytes()), (1, 256 << 20));
    let boot = BootArg::Kernel { kernel: "k".into(), initrd: None, cmdline: "console=ttyS0".into() };
    assert_eq!((args.boot, args.serial), (boot, SerialArg::Stdio));
}

#[test]
fn every_flag_is_parsed() {
    let args = run(
        "--kernel k --initrd=i --cmdline=quiet --cpus 4 --memory 6G --disk path=a,readonly=on,queues=4,cache=none,block=4096 \
                    --disk path=b,bus=sata,format=qcow2 --cdrom path=c,bus=scsi --net tap=t0,mac=52:54:00:00:00:01 --net tap=t1,queues=2,vhost=off --net stream=s --serial socket=s \
                    --vnc unix:v",
    );
    let boot = BootArg::Kernel { kernel: "k".into(), initrd: Some("i".into()), cmdline: "quiet".into() };
    assert_eq!(args.boot, boot);
    assert_eq!((args.cpus.count(), args.memory.bytes()), (4, 6 << 30));
    let disk = |path: &str, read_only, (attachment, queues)| DiskArg {
        path: path.into(),
        format: if path == "b" { ImageFormat::Qcow2 } else { ImageFormat::Raw },
        read_only,
        attachment,
        queues,
        cache: if path == "a" { CacheMode::None } else { CacheMode::WriteBack },
        blocks: if path == "a" { Blocks::new(4096, 4096, None).unwrap() } else { Blocks::default() },
    };
    let (sata, cdrom) = (Attachment::Sata(DiskDevice::Disk), Attachment::Scsi(DiskDevice::CdRom));
    let want =
        [disk("a", true, (Attachment::Virtio, 4)), disk("b", false, (sata, 1)), disk("c", true, (cdrom, 1))];
    assert_eq!(args.disks, want);
    assert_eq!(args.nets[0].mac, Some("52:54:00:00:00:01".parse().unwrap()));
    let tap = |name: &str, queues, vhost| PeerArg::Tap { name: name.into(), queues, vhost };
    assert_eq!(args.nets[0].peer, tap("t0", 1, None));
    assert_eq!(args.nets[1], NetArg { peer: tap("t1", 2, Some(false)), mac: None });
    assert_eq!(args.nets[2], NetArg { peer: PeerArg::Stream("s".into()), mac: None });
    assert_eq!(args.serial, SerialArg::Socket("s".into()));
    assert_eq!(args.vnc, Some(Address::Unix("v".into())));
    assert_eq!((args.video, args.inputs), (Adapter::Bochs, vec![Input::Tablet]));
    assert_eq!(run("--kernel k --vnc unix:v --video virtio").video, Adapter::Virtio);
    assert_eq!(run("--kernel k --vnc unix:v --input keyboard").inputs, [Input::Keyboard]);
    assert_eq!(run("--kernel k").inputs, []);
    assert_eq!(run("--kernel k --watchdog shutdown").watchdog, Some(WatchdogAction::Shutdown));
    assert!(run("--kernel k --exit-on-triple-fault").exit_on_triple_fault);
    assert!(!run("--kernel k").exit_on_triple_fault);
    assert_eq!(run("--kernel k --vsock cid=77").vsock, Some(77));
    let fs = FilesystemArg { tag: "t".into(), socket: "s".into() };
    assert_eq!(run("--kernel k --fs tag=t,socket=s").filesystems, [fs]);
    assert_eq!(run("--kernel k --panic isa --panic pvpanic").panic, PanicModel::ALL);
}

#[test]
fn firmware_is_enough_too() {
    let bios = BootArg::Firmware { code: "bios".into(), variables: None };
    assert_eq!(run("--firmware bios").boot, bios);
    let efi = BootArg::Firmware { code: "efi".into(), variables: Some("vars".into()) };
    assert_eq!(run("--firmware efi --nvram vars").boot, efi);
}

#[test]
fn mistakes_name_the_option() {
    for (line, named) in [
        ("", "--kernel"),
        ("--firmware f --kernel k", "--kernel"),
        ("--kernel k --nvram n", "--nvram"),
        ("--firmware f --cmdline quiet", "--cmdline"),
        ("--firmware f --firmware f", "--firmware"),
        ("--kernel k --cpus 255", "--cpus"),
        ("--kernel k --cpus many", "many"),
        ("--kernel k --memory 1M", "--memory"),
        ("--kernel k --kernel l", "--kernel"),
        ("--kernel k --disk readonly=on", "--disk"),
        ("--kernel k --disk path=a,readonly=yes", "readonly"),
        ("--kernel k --disk path=a,cache=fast", "writethrough"),
        ("--kernel k --disk path=a,mode=fast", "cache and block"),
        ("--kernel k --disk path=a,block=1000", "powers of two"),
        ("--kernel k --disk path=a,bus=scsi,block=4096", "bus virtio alone"),
        ("--kernel k --disk path=a,format=vmdk", "vmdk"),
        ("--kernel k --disk path=a,queues=0", "1 to 32"),
        ("--kernel k --disk path=a,queues=33", "1 to 32"),
        ("--kernel k --disk path=a,bus=sata,queues=2", "bus virtio alone"),
        ("--kernel k --disk path=a,bus=ide", "ide"),
        ("--kernel k --cdrom path=a,bus=virtio", "virtio"),
        ("--kernel k --cdrom readonly=on", "readonly"),
        ("--kernel k --net mac=52:54:00:00:00:01", "tap=NAME or stream=PATH"),
        ("--kernel k --net tap=t,stream=s", "tap=NAME or stream=PATH"),
        ("--kernel k --net stream=s,queues=2", "tap alone"),
        ("--kernel k --net stream=s,vhost=off", "tap alone"),
        ("--kernel k --net stream=s,stream=t", "twice"),
        ("--kernel k --net socket=s", "tap, stream"),
        ("--kernel k --net tap=t,mac=x", "--net"),
        ("--kernel k --net tap=t,queues=9", "1 to 8"),
        ("--kernel k --serial tty", "--serial"),
        ("--kernel k --input mouse", "mouse"),
        ("--kernel k --panic hyperv", "hyperv"),
        ("--kernel k --vsock cid=2", "4294967294"),
        ("--kernel k --vsock id=3", "cid"),
        ("--kernel k --fs socket=s", "tag= is missing"),
        ("--kernel k --fs tag=t", "socket= is missing"),
        ("--kernel k --fs tag=t,path=s", "tag and socket"),
        ("--kernel k --watchdog bark", "bark"),
        ("--kernel k --watchdog reset --watchdog reset", "--watchdog"),
        ("--kernel k --vnc unix:v --video vga", "vga"),
        ("--kernel k --video virtio", "--vnc"),
        ("--kernel k --vnc 0.0.0.0:5900", "--vnc"),
        ("--kernel k --bogus", "bogus"),
        ("k", "k"),
    ] {
        let error = words(line).unwrap_err().to_string();
        assert!(error.contains(named), "{line}: {error}");
    }
}

#[test]
fn help_and_version_need_nothing_else() {
    assert!(matches!(words("--help"), Ok(Command::Help)));
    assert!(matches!(words("--version"), Ok(Command::Version)));
}
