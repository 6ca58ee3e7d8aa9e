//! `virtctl credentials`: SSH keys and passwords in the Secrets of a virtual machine's access credentials.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::Failure;
use crate::cli::{
    AddKey, Credentials, CredentialsCommand, PublicKey, RemoveKey, Server, SetPassword, UserSecret,
};
use crate::client::{Client, ClientError};

/// Length of the random part of a name.
const LETTERS: usize = 6;
/// How often a Secret is changed anew that others changed meanwhile.
const ATTEMPTS: usize = 5;

#[derive(Debug, thiserror::Error)]
enum CredentialsError {
    #[error("error getting ssh key: cannot read {}", .0.display())]
    Key(PathBuf, #[source] std::io::Error),
    #[error("error getting virtual machine")]
    Vm(#[source] ClientError),
    #[error("error when getting virtual machine instance")]
    Vmi(#[source] ClientError),
    #[error(
        "virtual machine {0} is running. Use --force flag to update a running VM, it will take effect after restart"
    )]
    Running(String),
    #[error("error creating secret")]
    Create(#[source] ClientError),
    #[error("error patching virtual machine")]
    PatchVm(#[source] ClientError),
    #[error("no secrets specified for user: {0}")]
    NoSecret(String),
    #[error("no secrets assigned to UserPassword AccessCredentials")]
    NoPassword,
    #[error("multiple secrets specified, use option --secret to specify which secret to modify")]
    Several,
    #[error("secret {0} was not assigned")]
    NotAssigned(String),
    #[error("secret {0} is not associated with user {1}")]
    NotOfUser(String, String),
    #[error("error getting secret \"{0}\"")]
    Secret(String, #[source] ClientError),
    #[error("error patching secret \"{0}\"")]
    PatchSecret(String, #[source] ClientError),
    #[error("secret {0} does not have an owner reference pointing to VM {1}")]
    NotOwned(String, String),
}

/// Changes the credentials.
pub(crate) async fn run(server: &Server, args: &Credentials) -> Result<(), Failure> {
    // `--user` is that of the guest.
    let server = Server { user: None, ..server.clone() };
    let done = match &args.command {
        CredentialsCommand::AddSshKey(args) => add_key(&server, args).await?,
        CredentialsCommand::RemoveSshKey(args) => remove_key(&server, args).await?,
        CredentialsCommand::SetPassword(args) => set_password(&server, args).await?,
    };
    if let Some(done) = done {
        println!("{done}");
    }
    Ok(())
}

/// What a command prints.
type Done = Option<String>;

async fn add_key(server: &Server, args: &AddKey) -> Result<Done, Failure> {
    let key = read(&args.key)?;
    let (client, vm) = fetch(server, &args.user).await?;
    let user = guest_user(&args.user);
    let secrets = secrets_of_user(&vm, user);
    if args.create_secret || (secrets.is_empty() && !args.update_secret) {
        create_secret(&client, args, &vm, &key).await?;
        return Ok(None);
    }
    let name = choose(args.user.secret.as_deref(), &secrets, || CredentialsError::NoSecret(user.to_owned()))?;
    let secret = secret(&client, &name).await?;
    if values(&secret).any(|(_, text)| text.lines().any(|line| is_key(line, &key))) {
        return Ok(Some(format!("Secret \"{name}\" already contains this SSH key.")));
    }
    owned(&secret, &name, &vm, args.user.force)?;
    write(&client, &name, &random_name("ssh-key-"), &key).await?;
    Ok(Some(format!("Successfully added the key to secret \"{name}\"")))
}

/// Creates a Secret with a key, and has the virtual machine refer to it.
async fn create_secret(client: &Client, args: &AddKey, vm: &Value, key: &str) -> Result<(), Failure> {
    let UserSecret { vm: name, force, .. } = &args.user;
    if !force {
        match client.get(&client.vmi(name)).await {
            Ok(_) => return Err(CredentialsError::Running(name.clone()).into()),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(CredentialsError::Vmi(error).into()),
        }
    }
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name,
        "uid": vm["metadata"]["uid"], "controller": true});
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"generateName": format!("{name}-ssh-key-"), "ownerReferences": [owner]},
        "data": {random_name("ssh-key-"): STANDARD.encode(key)},
    });
    let created = client.post(&client.core("secrets")?, &secret).await.map_err(CredentialsError::Create)?;
    let created: Value = serde_json::from_slice(&created)?;
    let credential = json!({"sshPublicKey": {
        "source": {"secret": {"secretName": created["metadata"]["name"]}},
        "propagationMethod": {"qemuGuestAgent": {"users": [guest_user(&args.user)]}},
    }});
    let mut all = credentials(vm).to_vec();
    all.push(credential);
    let patch = json!({"metadata": {"resourceVersion": vm["metadata"]["resourceVersion"]},
        "spec": {"template": {"spec": {"accessCredentials": all}}}});
    client.merge(&client.vm(name)?, &patch).await.map_err(CredentialsError::PatchVm)?;
    Ok(())
}

async fn remove_key(server: &Server, args: &RemoveKey) -> Result<Done, Failure> {
    let key = read(&args.key)?;
    let (client, vm) = fetch(server, &args.user).await?;
    let user = guest_user(&args.user);
    let mut secrets = secrets_of_user(&vm, user);
    if secrets.is_empty() {
        return Ok(Some(format!("No secrets associated with user {user}")));
    }
    if let Some(given) = &args.user.secret {
        secrets.retain(|name| name == given);
        if secrets.is_empty() {
            return Err(CredentialsError::NotOfUser(given.clone(), user.to_owned()).into());
        }
    }
    for name in secrets {
        remove_from(&client, &name, &vm, &key, args.user.force).await?;
    }
    Ok(None)
}

/// Takes a key out of a Secret, which need not exist any longer.
async fn remove_from(
    client: &Client,
    name: &str,
    vm: &Value,
    key: &str,
    force: bool,
) -> Result<(), CredentialsError> {
    let failed = |error| CredentialsError::PatchSecret(name.to_owned(), error);
    for attempt in 1.. {
        let secret = match secret(client, name).await {
            Err(CredentialsError::Secret(_, error)) if error.is_not_found() => return Ok(()),
            secret => secret?,
        };
        owned(&secret, name, vm, force)?;
        let changed = without_key(&secret, key);
        if changed.is_empty() {
            return Ok(());
        }
        let version = &secret["metadata"]["resourceVersion"];
        let patch = json!({"metadata": {"resourceVersion": version}, "data": changed});
        match client.merge(&path(client, name).map_err(failed)?, &patch).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) if error.is_conflict() && attempt < ATTEMPTS => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// The entries of a Secret that have a key, without it; null where nothing else is left.
fn without_key(secret: &Value, key: &str) -> Map<String, Value> {
    let changed = values(secret).filter_map(|(entry, text)| {
        if !text.lines().any(|line| is_key(line, key)) {
            return None;
        }
        let kept = text.lines().filter(|line| !is_key(line, key) && !line.trim().is_empty());
        let kept = kept.collect::<Vec<_>>().join("\n");
        let value = if kept.is_empty() { Value::Null } else { json!(STANDARD.encode(kept)) };
        Some((entry, value))
    });
    changed.collect()
}

async fn set_password(server: &Server, args: &SetPassword) -> Result<Done, Failure> {
    let (client, vm) = fetch(server, &args.user).await?;
    let by_agent = credentials(&vm).iter().filter_map(|one| {
        let password = &one["userPassword"];
        password["propagationMethod"].get("qemuGuestAgent")?;
        Some(password["source"]["secret"]["secretName"].as_str()?.to_owned())
    });
    let secrets: Vec<String> = by_agent.filter(|name| !name.is_empty()).collect();
    let name = choose(args.user.secret.as_deref(), &secrets, || CredentialsError::NoPassword)?;
    if !args.user.force {
        owned(&secret(&client, &name).await?, &name, &vm, false)?;
    }
    write(&client, &name, guest_user(&args.user), &args.password).await?;
    Ok(Some(format!("Successfully set password in secret \"{name}\"")))
}

fn guest_user(user: &UserSecret) -> &str {
    user.guest_user.as_deref().unwrap_or_default()
}

/// The public key, as it is in an `authorized_keys`.
fn read(key: &PublicKey) -> Result<String, CredentialsError> {
    let text = match (&key.value, &key.file) {
        (Some(value), _) => value.clone(),
        (None, Some(file)) => {
            std::fs::read_to_string(file).map_err(|error| CredentialsError::Key(file.clone(), error))?
        }
        (None, None) => String::new(),
    };
    Ok(text.trim().to_owned())
}

async fn fetch(server: &Server, user: &UserSecret) -> Result<(Client, Value), Failure> {
    let client = Client::new(server).await?;
    let vm = client.get(&client.vm(&user.vm)?).await.map_err(CredentialsError::Vm)?;
    Ok((client, vm))
}

fn credentials(vm: &Value) -> &[Value] {
    vm["spec"]["template"]["spec"]["accessCredentials"].as_array().map_or(&[], Vec::as_slice)
}

/// The Secrets whose keys the guest agent gives to a user.
fn secrets_of_user(vm: &Value, user: &str) -> Vec<String> {
    let of_user = credentials(vm).iter().map(|one| &one["sshPublicKey"]).filter(|key| {
        let users = key["propagationMethod"]["qemuGuestAgent"]["users"].as_array();
        users.is_some_and(|users| users.iter().any(|one| one == user))
    });
    let names = of_user.filter_map(|key| key["source"]["secret"]["secretName"].as_str());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The Secret that is given, else the only one.
fn choose(
    given: Option<&str>,
    secrets: &[String],
    none: impl FnOnce() -> CredentialsError,
) -> Result<String, CredentialsError> {
    match (given, secrets) {
        (_, []) => Err(none()),
        (Some(given), _) if secrets.iter().any(|name| name == given) => Ok(given.to_owned()),
        (Some(given), _) => Err(CredentialsError::NotAssigned(given.to_owned())),
        (None, [one]) => Ok(one.clone()),
        (None, _) => Err(CredentialsError::Several),
    }
}

fn path(client: &Client, name: &str) -> Result<String, ClientError> {
    client.core(&format!("secrets/{name}"))
}

async fn secret(client: &Client, name: &str) -> Result<Value, CredentialsError> {
    let failed = |error| CredentialsError::Secret(name.to_owned(), error);
    client.get(&path(client, name).map_err(failed)?).await.map_err(failed)
}

/// Sets an entry of a Secret.
async fn write(client: &Client, name: &str, entry: &str, value: &str) -> Result<(), CredentialsError> {
    let failed = |error| CredentialsError::PatchSecret(name.to_owned(), error);
    let patch = json!({"data": {entry: STANDARD.encode(value)}});
    client.merge(&path(client, name).map_err(failed)?, &patch).await.map_err(failed)?;
    Ok(())
}

/// A Secret that a virtual machine does not own may be that of several.
fn owned(secret: &Value, name: &str, vm: &Value, force: bool) -> Result<(), CredentialsError> {
    let (vm_name, uid) = (&vm["metadata"]["name"], &vm["metadata"]["uid"]);
    let owners = secret["metadata"]["ownerReferences"].as_array();
    let is_owned = owners
        .into_iter()
        .flatten()
        .any(|owner| owner["kind"] == "VirtualMachine" && owner["name"] == *vm_name && owner["uid"] == *uid);
    if force || is_owned {
        return Ok(());
    }
    let vm_name = vm_name.as_str().unwrap_or_default();
    Err(CredentialsError::NotOwned(name.to_owned(), vm_name.to_owned()))
}

/// The entries of a Secret that are text.
fn values(secret: &Value) -> impl Iterator<Item = (String, String)> {
    let data = secret["data"].as_object();
    data.into_iter().flatten().filter_map(|(entry, value)| {
        let bytes = STANDARD.decode(value.as_str()?).ok()?;
        Some((entry.clone(), String::from_utf8(bytes).ok()?))
    })
}

/// Whether a line has a key; a comment may follow it. A key is a kind and a value: many lines begin with a part of that.
fn is_key(line: &str, key: &str) -> bool {
    let is_whole = key.contains(char::is_whitespace);
    let rest = line.trim().strip_prefix(key).filter(|_| !key.is_empty());
    rest.is_some_and(|rest| rest.is_empty() || (is_whole && rest.starts_with(char::is_whitespace)))
}

fn random_name(prefix: &str) -> String {
    let letters: String = (0..LETTERS).map(|_| fastrand::alphanumeric().to_ascii_lowercase()).collect();
    format!("{prefix}{letters}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_taken_out_of_the_entries_that_have_it() {
        let entry = |text: &str| json!(STANDARD.encode(text));
        let secret = json!({"data": {"one": entry("ssh-rsa A ada\n"), "two": entry("ssh-rsa A\n\nssh-rsa B\n"),
            "other": entry("ssh-rsa B"), "binary": STANDARD.encode([0xff])}});
        let changed = without_key(&secret, "ssh-rsa A");
        assert_eq!(Value::Object(changed), json!({"one": null, "two": entry("ssh-rsa B")}));
        let others = json!({"data": {"one": entry("ssh-rsa AB\nssh-rsa C ada")}});
        for part in ["", "ssh-rsa", "ssh-rsa A"] {
            assert_eq!(without_key(&others, part), Map::new(), "{part}");
        }
    }

    #[test]
    fn the_secret_is_the_one_that_is_meant() {
        let all = ["a".to_owned(), "b".to_owned()];
        let chosen = |given, secrets: &[String]| {
            choose(given, secrets, || CredentialsError::NoPassword).map_err(|error| error.to_string())
        };
        assert_eq!(chosen(None, &all[..1]), Ok("a".to_owned()));
        assert_eq!(chosen(Some("b"), &all), Ok("b".to_owned()));
        assert!(chosen(None, &all).unwrap_err().contains("--secret"));
        assert_eq!(chosen(Some("c"), &all), Err("secret c was not assigned".to_owned()));
        assert!(chosen(Some("a"), &[]).unwrap_err().contains("no secrets"));
    }
}
