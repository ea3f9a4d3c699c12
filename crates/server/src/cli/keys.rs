//! `towpath keys new`: makes an API key, shows it once, and shows what to configure.

use clap::{Args, Subcommand};

use super::{Failure, output};
use crate::http::access::{ApiKey, NewKey, Role};

/// What can be done with keys.
#[derive(Subcommand)]
pub(crate) enum Keys {
    /// Make a key: it is shown once, and only its hash is configured
    New(New),
}

/// Whom the key is for.
#[derive(Args)]
pub(crate) struct New {
    /// Who will use it: this name stands in every record of what was done with it
    #[arg(long, value_name = "NAME")]
    name: String,

    /// What it may do
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Role,
}

/// Runs a subcommand.
pub(crate) fn run(what: Keys) -> Result<(), Failure> {
    let Keys::New(New { name, role }) = what;
    let made = NewKey::make()
        .map_err(|error| Failure::unreachable(format!("this machine gives no random numbers: {error}")))?;
    ApiKey::new(&name, role, &made.hash).map_err(|error| Failure::usage(error.to_string()))?;
    output::line(&made.key);
    output::note(
        "This key is shown once. Give it to who needs it, and put this into the configuration file:\n",
    );
    let quoted = toml::Value::String(name).to_string();
    output::line(&format!(
        "\n[[access.key]]\nname = {quoted}\nrole = \"{}\"\nhash = \"{}\"",
        role.as_str(),
        made.hash
    ));
    Ok(())
}
