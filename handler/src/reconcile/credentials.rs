//! Has the guest agent set the keys and passwords of Secrets, and follows the Secrets.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, Span, debug};
use uuid::Uuid;
use vireo_api::names::access_credential;
use vireo_api::spec::{AccessCredential, CredentialMethod};
use vireo_proto::launcher::{AuthorizedKeys, SetCredentialsRequest, UserPassword};

use super::projected::{read_in_pod, read_objects};
use super::record::Record;
use crate::launcher::link::{chain, set_credentials};
use crate::node::Node;
use crate::settings::Runtime;
use crate::storage::iso::File;
use crate::storage::projected::{ProjectedError, ProjectedFiles, files_in, of_credential, ssh_keys};

/// How often Secrets in a Pod are read, and how soon a failure is retried; KubeVirt's.
const POLL: Duration = Duration::from_secs(15);
/// How often what was set is set again, as the guest may have changed it; KubeVirt's.
const RESYNC: Duration = Duration::from_secs(5 * 60);
/// KubeVirt's message.
const OFFLINE: &str = "Guest agent is offline";

/// Whether the guest agent can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guest {
    /// The guest does not run.
    Paused,
    /// No agent is connected.
    WithoutAgent,
    /// It can.
    WithAgent,
}

/// What became of the credentials, with the reason of a failure.
type Outcome = Result<(), String>;

/// Runs until it is dropped.
#[derive(Debug)]
pub(super) struct CredentialSync {
    guest: watch::Sender<Guest>,
    result: watch::Receiver<Option<Outcome>>,
    _task: AbortOnDropHandle<()>,
}

impl CredentialSync {
    /// Starts for a VMI whose launcher has this process ID. Returns `None` for one whose agent has nothing to set.
    pub(super) fn start(node: &Arc<Node>, record: &Record, pid: i32, guest: Guest) -> Option<Self> {
        if record.vmi.spec.access_credentials.is_empty() {
            return None;
        }
        let vm = record.vm().ok()?;
        let by_agent = vm.access_credentials().iter().filter(|credential| credential.is_by_agent());
        let credentials: Vec<_> = by_agent.cloned().collect();
        if credentials.is_empty() {
            return None;
        }
        let follower = Follower {
            node: Arc::clone(node),
            namespace: vm.identity().namespace().to_owned(),
            uid: record.uid,
            pid,
            socket: record.dir.launcher_socket(),
            credentials,
        };
        let (guest, is_now) = watch::channel(guest);
        let (publish, result) = watch::channel(None);
        let task = tokio::spawn(follower.run(is_now, publish).instrument(Span::current()));
        Some(Self { guest, result, _task: AbortOnDropHandle::new(task) })
    }

    /// Sets whether the agent can be asked.
    pub(super) fn set_guest(&self, guest: Guest) {
        self.guest.send_if_modified(|known| std::mem::replace(known, guest) != guest);
    }

    /// What became of the credentials, once that is known.
    pub(super) fn result(&self) -> Option<Outcome> {
        self.result.borrow().clone()
    }

    /// Waits until the result changes.
    pub(super) async fn changed(&mut self) {
        if self.result.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Reads the Secrets of a VMI and passes them to its launcher.
struct Follower {
    node: Arc<Node>,
    namespace: String,
    uid: Uuid,
    /// The launcher's.
    pid: i32,
    socket: PathBuf,
    credentials: Vec<AccessCredential>,
}

impl Follower {
    async fn run(self, mut guest: watch::Receiver<Guest>, publish: watch::Sender<Option<Outcome>>) {
        let publish = |outcome: Outcome| {
            publish.send_if_modified(|known| {
                let differs = known.as_ref() != Some(&outcome);
                *known = Some(outcome);
                differs
            });
        };
        loop {
            let now = *guest.borrow_and_update();
            let set_and_wait = async {
                match now {
                    Guest::Paused => std::future::pending().await,
                    Guest::WithoutAgent => {
                        publish(Err(OFFLINE.to_owned()));
                        std::future::pending().await
                    }
                    Guest::WithAgent => match self.set().await {
                        Ok(known) => {
                            publish(Ok(()));
                            tokio::select! {
                                () = sleep(RESYNC) => {}
                                () = self.secrets_change(&known) => {}
                            }
                        }
                        Err(why) => {
                            debug!(why, "cannot set the access credentials");
                            publish(Err(why));
                            sleep(POLL).await;
                        }
                    },
                }
            };
            tokio::select! {
                changed = guest.changed() => if changed.is_err() { return },
                () = set_and_wait => {}
            }
        }
    }

    /// Sets what the Secrets have now, which is returned.
    async fn set(&self) -> Result<ProjectedFiles, String> {
        let files = self.read().await?;
        let request = request(&self.credentials, &files).map_err(|error| error.to_string())?;
        let set = set_credentials(&self.socket, request).await;
        set.map(|()| files).map_err(|error| chain(&error))
    }

    async fn read(&self) -> Result<ProjectedFiles, String> {
        let wanted = self.credentials.iter().map(of_credential).collect();
        let read = match self.node.settings.runtime {
            Runtime::Pods(_) => read_in_pod(&self.node, &self.namespace, self.pid, wanted).await,
            Runtime::Process => read_objects(&self.node, (&self.namespace, self.uid), wanted).await,
        };
        read.map_err(|error| chain(&error))
    }

    /// Returns once a Secret has changed.
    async fn secrets_change(&self, known: &ProjectedFiles) {
        if let (Runtime::Process, Some(projector)) = (&self.node.settings.runtime, self.node.projector()) {
            let differs = self.credentials.iter().map(|credential| {
                let files = files_of(credential, known);
                Box::pin(projector.differs(&self.namespace, credential.secret(), files))
            });
            select_all(differs).await;
            return;
        }
        loop {
            sleep(POLL).await;
            // What cannot be read now is read again.
            if self.read().await.is_ok_and(|files| files != *known) {
                return;
            }
        }
    }
}

fn files_of<'a>(credential: &AccessCredential, all: &'a ProjectedFiles) -> &'a [File] {
    files_in(all, &access_credential(credential.index()))
}

/// What the agent is to set: all keys of a user at once, and of several passwords the last.
///
/// # Errors
/// Names an entry with keys that is not text.
fn request(
    credentials: &[AccessCredential],
    all: &ProjectedFiles,
) -> Result<SetCredentialsRequest, ProjectedError> {
    let mut keys: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut passwords: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for credential in credentials {
        let files = files_of(credential, all);
        match credential.method() {
            CredentialMethod::AgentKeys { users } => {
                let found = ssh_keys(files)?;
                for user in users {
                    let known = keys.entry(user).or_default();
                    for key in &found {
                        if !known.contains(key) {
                            known.push(key.clone());
                        }
                    }
                }
            }
            CredentialMethod::AgentPasswords => {
                // As KubeVirt reads them, as files often end with a newline.
                let trimmed = files.iter().map(|file| (file.path.as_str(), file.content.trim_ascii()));
                let given = trimmed.filter(|(_, password)| !password.is_empty());
                passwords.extend(given.map(|(user, password)| (user, password.to_owned())));
            }
            CredentialMethod::NoCloudKeys | CredentialMethod::ConfigDriveKeys => {}
        }
    }
    let keys = keys.into_iter().map(|(user, keys)| AuthorizedKeys { user: user.to_owned(), keys });
    let passwords =
        passwords.into_iter().map(|(user, password)| UserPassword { user: user.to_owned(), password });
    Ok(SetCredentialsRequest { authorized_keys: keys.collect(), passwords: passwords.collect() })
}

#[cfg(test)]
mod tests {
    use vireo_api::decode;
    use vireo_api::spec::Vm;

    use super::*;

    fn vm() -> Vm {
        let by = |kind: &str, secret: &str, users: &str| {
            format!(
                "{{{kind}: {{source: {{secret: {{secretName: {secret}}}}}, propagationMethod: \
                 {{qemuGuestAgent: {{{users}}}}}}}}}"
            )
        };
        let credentials = [
            by("sshPublicKey", "a", "users: [ada, bob]"),
            by("sshPublicKey", "b", "users: [bob]"),
            by("userPassword", "c", ""),
        ];
        let manifest = format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n\
             metadata: {{name: web, uid: 5d307ca9-b3ef-428c-8861-06e72d69f223}}\n\
             spec: {{domain: {{memory: {{guest: 64Mi}}, devices: {{}}}}, accessCredentials: [{}]}}\n",
            credentials.join(", ")
        );
        decode::manifest(&manifest).unwrap().remove(0).check().unwrap()
    }

    #[test]
    fn users_get_the_keys_and_passwords_of_all_their_secrets() {
        let vm = vm();
        let secret = |index: usize, files: Vec<File>| (access_credential(index), files);
        let mut all = ProjectedFiles::from([
            secret(0, vec![File::new("one", "ssh-rsa A\n"), File::new("two", "ssh-rsa B")]),
            secret(1, vec![File::new("three", "ssh-rsa B\nssh-rsa C")]),
            secret(2, vec![File::new("ada", "pass word\n"), File::new("none", "\n")]),
        ]);
        let made = request(vm.access_credentials(), &all).unwrap();
        let keys = |user: &str, keys: &[&str]| AuthorizedKeys {
            user: user.to_owned(),
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        let (ada, bob) =
            (keys("ada", &["ssh-rsa A", "ssh-rsa B"]), keys("bob", &["ssh-rsa A", "ssh-rsa B", "ssh-rsa C"]));
        assert_eq!(made.authorized_keys, [ada, bob]);
        let password = UserPassword { user: "ada".to_owned(), password: b"pass word".to_vec() };
        assert!(!format!("{made:?}").contains("pass word"), "passwords are not logged");
        assert_eq!(made.passwords, [password]);
        // An empty Secret takes the keys away.
        all.extend([secret(0, Vec::new()), secret(1, Vec::new())]);
        let made = request(vm.access_credentials(), &all).unwrap();
        assert_eq!(made.authorized_keys, [keys("ada", &[]), keys("bob", &[])]);
        all.extend([secret(1, vec![File::new("x", [0xff])])]);
        assert!(
            matches!(request(vm.access_credentials(), &all), Err(ProjectedError::NotText(name)) if name == "x")
        );
    }
}
