//! What people see of a guest and do to it, through the monitor's own VNC server.

use std::path::Path;
use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::guest::{Flavour, GuestConfig, Monitor, Video};
use vireo_tests::picture::Picture;
use vireo_tests::{Host, HostBuilder, HostError, scenario};

use crate::{SOON, host_for_guests, power_off};

pub(super) const SOCKET: &str = "/tmp/vnc";
const LONG: Duration = Duration::from_secs(60);

/// A host whose `/out` is `scratch`, with a viewer.
pub(super) fn host(scratch: &Path) -> Result<HostBuilder, HostError> {
    let builder = host_for_guests(scratch)?.file(env!("CARGO_BIN_EXE_look"));
    Ok(builder.output(scratch).memory_mib(1024))
}

/// Looks at the display, after doing what `actions` say; the picture is kept under `name`.
pub(super) fn look(host: &Host, name: &str, actions: &[&str]) -> Result<Picture, HostError> {
    let picture = format!("/out/{name}.ppm");
    let words = [&[SOCKET], actions, &["ppm", &picture]].concat();
    host.command("/in/look").args(words).deadline(SOON).run()?.ok();
    let picture = Picture::read(&host.output().join(format!("{name}.ppm"))).expect("a picture");
    eprintln!("display: {}", picture.keep(name).expect("room for a picture").display());
    Ok(picture)
}

/// 256 lines of one colour each, blue lowest, onto the framebuffer.
const STRIPES: &str = r"stripe() {
    printf $1 >/tmp/a
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18; do cat /tmp/a /tmp/a >/tmp/b; mv /tmp/b /tmp/a; done
    cat /tmp/a
}; (stripe '\000\000\377\000'; stripe '\000\377\000\000'; stripe '\377\020\000\000') >/dev/fb0";

/// A line that draws them.
pub(super) fn stripes() -> String {
    STRIPES.replace('\n', ";").replace("{;", "{")
}

/// Prints whose framebuffer the first is.
const NAME: &str = "cat /sys/class/graphics/fb0/name";

/// A shell line that waits for what a reader in the guest keeps as `/tmp/NAME`, and prints it.
fn bytes_of(name: &str, format: &str) -> String {
    format!(
        "for i in $(seq 50); do [ -s /tmp/{name} ] && break; sleep 0.1; done; hexdump -v -e '{format}' /tmp/{name}"
    )
}

pub(super) fn check_stripes(picture: &Picture) {
    assert_eq!((picture.width, picture.height), (1024, 768));
    for (lines, colour) in [(0..256, [255, 0, 0]), (256..512, [0, 255, 0]), (512..768, [0, 16, 255])] {
        for y in lines {
            let wrong = (0..1024).find(|x| picture.at(*x, y) != Some(colour));
            assert_eq!(wrong, None, "line {y}: {:?} instead of {colour:?}", wrong.map(|x| picture.at(x, y)));
        }
    }
}

/// The driver of virtio-gpu takes the display from the firmware's framebuffer, and follows the size that the viewer asks for.
fn with_a_driver(host: &Host, monitor: Monitor) -> Result<(), HostError> {
    host.shell(&format!("rm -f {SOCKET}")).run()?.ok();
    let config = GuestConfig {
        kernel: Flavour::Full,
        vnc: Some(SOCKET.into()),
        video: Video::Virtio,
        command_line: "vt.global_cursor_default=0".into(),
        ..GuestConfig::default()
    };
    let mut guest = config.start(host, monitor)?;
    guest.ready()?;
    assert_eq!(guest.run(NAME, SOON)?.trim(), "VESA VGA", "what a boot loader would have set up");
    guest.run("modprobe virtio_gpu", LONG)?;
    assert_eq!(guest.run(NAME, SOON)?.trim(), "virtio_gpudrmfb");
    guest.run(&stripes(), LONG)?;
    check_stripes(&look(host, "stripes-of-virtio", &[])?);

    let modes = "head -n 1 /sys/class/drm/card*-Virtual-1/modes";
    assert_eq!(guest.run(modes, SOON)?.trim(), "1024x768");
    look(host, "resized", &["resize", "800", "600"])?;
    eventually("the guest follows", SOON, || {
        let picture = look(host, "resized", &[])?;
        Ok((picture.width, picture.height) == (800, 600) && picture.at(799, 599) == Some([0, 16, 255]))
    })?;
    assert_eq!(guest.run(modes, SOON)?.trim(), "800x600");
    power_off(guest)
}

#[test]
fn nested_a_kernel_draws_and_gets_keys_without_a_driver() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let load = |host: &Host, monitor: Monitor| {
        let config = GuestConfig {
            kernel: Flavour::Full,
            vnc: Some(SOCKET.into()),
            command_line: "vt.global_cursor_default=0".into(),
            ..GuestConfig::default()
        };
        let mut guest = config.start(host, monitor)?;
        guest.ready()?;
        guest.run(&stripes(), LONG)?;
        check_stripes(&look(host, "stripes", &[])?);

        // A line as a terminal hands it on: keys, shift and layout are all in it.
        guest.run("(head -n 1 /dev/tty1 >/tmp/typed) & sleep 1", SOON)?;
        look(host, "typed", &["type", "Hello, World_7!\\n"])?;
        let typed = guest.run(
            "for i in $(seq 50); do [ -s /tmp/typed ] && break; sleep 0.1; done; cat /tmp/typed",
            SOON,
        )?;
        assert_eq!(typed.trim(), "Hello, World_7!");

        let mouse =
            "modprobe psmouse; for i in $(seq 50); do [ -e /dev/input/mouse0 ] && break; sleep 0.1; done";
        guest.run(mouse, SOON)?;
        guest.run("(head -c 3 /dev/input/mouse0 >/tmp/moved) & sleep 1", SOON)?;
        look(host, "moved", &["point", "100", "100", "0", "point", "120", "90", "0"])?;
        let moved = guest.run(&bytes_of("moved", "1/1 \"%d \""), SOON)?;
        assert_eq!(moved.trim(), "8 20 10", "right and up");

        // With its driver the tablet takes over: places of the display, of 32767.
        let driver = "modprobe virtio_input; grep -l -i tablet /sys/class/input/event*/device/name";
        let event = guest.run(driver, SOON)?;
        let event = event.split('/').nth(4).expect("an event device").to_owned();
        guest.run(&format!("(head -c 72 /dev/input/{event} >/tmp/pointed) & sleep 1"), SOON)?;
        look(host, "pointed", &["point", "1023", "0", "1"])?;
        let events = guest
            .run(&bytes_of("pointed", "4/4 \"%u \" \" \" 2/2 \"%u \" \" \" 1/4 \"%u\" \"\\n\""), SOON)?;
        let reported =
            |line: &str| line.split_whitespace().skip(4).map(|word| word.parse().unwrap_or(0)).collect();
        let reported: Vec<Vec<u32>> = events.lines().map(reported).collect();
        // The vertical axis was at 0 before, which Linux says nothing about.
        assert_eq!(reported[..3], [[3, 0, 32767], [1, 0x110, 1], [0, 0, 0]], "{events}");
        power_off(guest)?;
        with_a_driver(host, monitor)
    };
    scenario::run("display and keys", || host(scratch.path()), load);
}
