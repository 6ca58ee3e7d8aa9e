//! SSH keys and passwords that the agent sets for users of the guest.
//!
//! The keys of a user that the guest itself has are kept: ours end with [`MARK`], which is a part of their comment, and only
//! such keys are removed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;
use vireo_proto::launcher::{AuthorizedKeys, Fault, SetCredentialsRequest, UserPassword};

use super::transport::{AgentError, Transport};
use super::{AgentClient, AgentRequest};
use crate::fault::{Code, fault};

/// How a key ends that is a Secret's.
const MARK: &str = " kubevirt.io/access-credential";

/// What the agent did not do, in its words.
pub(super) type Refusal = String;

impl AgentClient {
    /// Sets keys and passwords. What the agent refuses for one user does not keep it from setting those of others.
    ///
    /// # Errors
    /// When no agent is connected, it does not respond, or it refuses some.
    pub async fn set_credentials(&self, request: SetCredentialsRequest) -> Result<(), Fault> {
        let mut refused = Vec::new();
        for keys in request.authorized_keys {
            let user = keys.user.clone();
            if let Some(why) = self.send(|reply| AgentRequest::SetKeys(keys, reply)).await? {
                refused.push(format!("cannot set the SSH keys of the user {user:?}: {why}"));
            }
        }
        for password in request.passwords {
            let user = password.user.clone();
            if let Some(why) = self.send(|reply| AgentRequest::SetPassword(password, reply)).await? {
                refused.push(format!("cannot set the password of the user {user:?}: {why}"));
            }
        }
        match refused.is_empty() {
            true => Ok(()),
            false => Err(fault(Code::Hypervisor, refused.join("; "))),
        }
    }
}

#[derive(Deserialize)]
struct Known {
    keys: Vec<String>,
}

/// Sets the keys of a user.
pub(super) async fn set_keys(
    transport: &mut Transport,
    wanted: &AuthorizedKeys,
) -> Result<Option<Refusal>, AgentError> {
    refusal(async {
        let user = json!({ "username": wanted.user });
        let command = json!({ "execute": "guest-ssh-get-authorized-keys", "arguments": user });
        let known = match transport.execute::<Known>(&command).await {
            Ok(known) => known.keys,
            // A user without a file has no keys. Another reason refuses the next command, too.
            Err(AgentError::Refused(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        let Change { add, remove } = change(&known, &wanted.keys);
        for (name, keys) in [("add", add), ("remove", remove)] {
            if keys.is_empty() {
                continue;
            }
            let execute = format!("guest-ssh-{name}-authorized-keys");
            let arguments = json!({ "username": wanted.user, "keys": keys });
            let command = json!({ "execute": execute, "arguments": arguments });
            transport.execute::<serde::de::IgnoredAny>(&command).await?;
        }
        Ok(())
    })
    .await
}

/// Sets the password of a user.
pub(super) async fn set_password(
    transport: &mut Transport,
    UserPassword { user, password }: &UserPassword,
) -> Result<Option<Refusal>, AgentError> {
    refusal(async {
        let arguments = json!({ "username": user, "password": STANDARD.encode(password), "crypted": false });
        let command = json!({ "execute": "guest-set-user-password", "arguments": arguments });
        transport.execute::<serde::de::IgnoredAny>(&command).await.map(drop)
    })
    .await
}

/// Tells what the agent refuses from failures of the connection.
async fn refusal(
    result: impl Future<Output = Result<(), AgentError>>,
) -> Result<Option<Refusal>, AgentError> {
    match result.await {
        Ok(()) => Ok(None),
        Err(error @ (AgentError::Refused(_) | AgentError::Answer(_))) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

/// What changes in the keys of a user.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    add: Vec<String>,
    remove: Vec<String>,
}

/// The change that makes the keys with our mark those that are wanted.
fn change(known: &[String], wanted: &[String]) -> Change {
    let wanted: Vec<String> = wanted.iter().map(|key| format!("{key}{MARK}")).collect();
    Change {
        add: wanted.iter().filter(|key| !known.contains(key)).cloned().collect(),
        remove: known.iter().filter(|key| key.ends_with(MARK) && !wanted.contains(key)).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_the_guest_are_kept() {
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let ours = |key: &str| format!("{key}{MARK}");
        let known =
            [keys(&["ssh-ed25519 A mine", "# a comment"]), vec![ours("ssh-rsa OLD x"), ours("ssh-rsa B")]];
        let known = known.concat();
        let changed = change(&known, &keys(&["ssh-rsa B", "ssh-rsa NEW y"]));
        assert_eq!(changed, Change { add: vec![ours("ssh-rsa NEW y")], remove: vec![ours("ssh-rsa OLD x")] });
        let same = change(&known, &keys(&["ssh-rsa B", "ssh-rsa OLD x"]));
        assert_eq!(same, Change { add: Vec::new(), remove: Vec::new() });
        assert_eq!(change(&known, &[]).remove, [ours("ssh-rsa OLD x"), ours("ssh-rsa B")]);
        let first = change(&[], &keys(&["ssh-ed25519 A mine"]));
        assert_eq!(first.add, [ours("ssh-ed25519 A mine")]);
    }
}
