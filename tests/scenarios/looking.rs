//! A VMI's display as people have it: through `virtctl vnc`, read from its pixels.

use std::fs::File;
use std::io::{self, BufReader};
use std::time::Duration;

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::picture::Picture;
use vireo_tests::reader::Reader;
use vireo_tests::relay::Relay;
use vireo_tests::vnc::Client;
use vireo_tests::{Host, HostError, Process};

use crate::SOON;

/// For a picture that changes by itself, such as at the end of a start.
const LONG: Duration = Duration::from_secs(240);
/// A viewer that asks for the picture many times and never reads one. It says when it has asked.
const DEAF: &str = r"exec 3<>/dev/tcp/127.0.0.1/PORT; printf 'RFB 003.008\n\1\1' >&3
    for i in {1..40}; do printf '\3\0\0\0\0\0\4\0\3\0' >&3; done; echo asked; exec sleep 1000";

/// What it takes to look at displays; made before there is one, for guests do not wait.
pub(crate) struct Looker {
    reader: Reader,
    client: Client,
}

/// One VMI's display.
pub(crate) struct VmiDisplay<'h> {
    host: &'h Host,
    name: String,
    looker: &'h Looker,
    port: u64,
    relay: Relay,
    /// `virtctl vnc --proxy-only`.
    _proxy: Process<'h>,
}

impl Looker {
    pub(crate) fn new() -> Result<Self, HostError> {
        let reader = Reader::new().map_err(HostError::Start)?;
        Ok(Self { reader, client: Client::get().map_err(HostError::Start)? })
    }
}

impl<'h> VmiDisplay<'h> {
    /// Of a VMI that runs.
    pub(crate) fn open(looker: &'h Looker, host: &'h Host, name: &str) -> Result<Self, HostError> {
        let words = ["vnc", name, "--proxy-only", "--state-dir", &host.work("state")];
        let mut proxy = host.command(&host.input("virtctl")).args(words).spawn()?;
        let reported = proxy.wait_for("\n", SOON)?;
        let reported: Value =
            serde_json::from_str(&reported).unwrap_or_else(|error| panic!("{error}: {reported}"));
        let port = reported["port"].as_u64().unwrap_or_else(|| panic!("no port in {reported}"));
        let relay = Relay::to(host, u16::try_from(port).map_err(other)?).map_err(HostError::Start)?;
        Ok(Self { host, name: name.to_owned(), looker, port, relay, _proxy: proxy })
    }

    /// Acts through the client of others.
    pub(crate) fn act(&self, actions: &[&str]) -> Result<(), HostError> {
        self.looker.client.act(self.relay.address(), actions).map(drop).map_err(HostError::Start)
    }

    /// What that client sees, kept under `keep` for people.
    pub(crate) fn seen_by_client(&self, keep: &str) -> Result<String, HostError> {
        let picture = self.looker.client.act(self.relay.address(), &[]).map_err(HostError::Start)?;
        self.keep(&picture, keep)?;
        Ok(self.looker.reader.read(&picture))
    }

    /// Waits until the display shows all of `texts`, by `virtctl vnc screenshot`; the picture is kept under `keep`.
    pub(crate) fn shows(&self, keep: &str, texts: &[&str]) -> Result<String, HostError> {
        let mut last = (self.screenshot()?, String::new());
        let shown = eventually(&format!("{texts:?} on the display ({keep})"), LONG, || {
            last.0 = self.screenshot()?;
            last.1 = self.looker.reader.read(&last.0);
            Ok(texts.iter().all(|text| last.1.contains(text)))
        });
        self.keep(&last.0, keep)?;
        shown.inspect_err(|_| eprintln!("the display shows:\n{}", last.1))?;
        Ok(last.1)
    }

    /// A viewer that hangs for as long as what is returned lives.
    pub(crate) fn deaf_viewer(&self) -> Result<Process<'h>, HostError> {
        let mut viewer = self.host.shell(&DEAF.replace("PORT", &self.port.to_string())).spawn()?;
        viewer.wait_for("asked", SOON)?;
        Ok(viewer)
    }

    fn screenshot(&self) -> Result<Picture, HostError> {
        let (virtctl, state) = (self.host.input("virtctl"), self.host.work("state"));
        let words =
            ["vnc", "screenshot", &self.name, "-f", &self.host.out("screen.png"), "--state-dir", &state];
        self.host.command(&virtctl).args(words).run()?.ok();
        let file = File::open(self.host.output().join("screen.png")).map_err(HostError::Start)?;
        Picture::png(BufReader::new(file)).map_err(HostError::Start)
    }

    fn keep(&self, picture: &Picture, name: &str) -> Result<(), HostError> {
        let path = picture.keep(name).map_err(HostError::Start)?;
        eprintln!("display: {}", path.display());
        Ok(())
    }
}

fn other(error: std::num::TryFromIntError) -> HostError {
    HostError::Start(io::Error::other(error))
}
