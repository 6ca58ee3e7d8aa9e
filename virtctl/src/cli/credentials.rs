use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct Credentials {
    #[command(subcommand)]
    pub(crate) command: CredentialsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CredentialsCommand {
    /// Add an SSH key of a user to a virtual machine
    AddSshKey(AddKey),
    /// Remove an SSH key of a user from a virtual machine
    RemoveSshKey(RemoveKey),
    /// Set the password of a user
    SetPassword(SetPassword),
}

/// Whose credentials, and where they are.
#[derive(Debug, Args)]
pub(crate) struct UserSecret {
    /// Name of the virtual machine
    pub(crate) vm: String,
    /// Name of the user in the guest
    // The id is that of the global flag of this name, which it hides, as upstream's does.
    #[arg(id = "user", short, long, value_name = "NAME", required = true)]
    pub(crate) guest_user: Option<String>,
    /// Name of the secret, of several that the virtual machine has for the user
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Option<String>,
    /// Also change a secret that the virtual machine does not own
    #[arg(long)]
    pub(crate) force: bool,
}

/// A public key: one of both.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PublicKey {
    /// File with the SSH public key
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The SSH public key
    #[arg(long, value_name = "KEY")]
    pub(crate) value: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AddKey {
    #[command(flatten)]
    pub(crate) user: UserSecret,
    #[command(flatten)]
    pub(crate) key: PublicKey,
    /// Create a new secret for the key; a running virtual machine has it after its restart, and needs --force
    #[arg(long, conflicts_with = "update_secret")]
    pub(crate) create_secret: bool,
    /// Add the key to a secret that is there
    #[arg(long)]
    pub(crate) update_secret: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveKey {
    #[command(flatten)]
    pub(crate) user: UserSecret,
    #[command(flatten)]
    pub(crate) key: PublicKey,
}

#[derive(Debug, Args)]
pub(crate) struct SetPassword {
    #[command(flatten)]
    pub(crate) user: UserSecret,
    /// Password of the user
    #[arg(short, long)]
    pub(crate) password: String,
}
