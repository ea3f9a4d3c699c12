//! `towpath follow URL`: keeps another Towpath's facts in a store of its own, where channels route them on.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use towpath::follow::{FollowError, FollowPolicy, Follower};
use towpath::retry::ErrorClass;
use towpath::{Coded as _, Towpath};

use super::config::ServeFlags;
use super::serve::{not_started, start_log};
use super::signals::told_to_stop;
use super::{Failure, output, told};
use crate::plugin::erased::Applications;

/// The flags of `towpath follow`.
#[derive(Args)]
pub(crate) struct FollowFlags {
    /// The other Towpath, such as https://orders.example:7400
    url: String,

    /// What this follower is called; its position is kept under the name [default: the host and port of the URL]
    #[arg(long)]
    name: Option<String>,

    /// A key of the other Towpath
    #[arg(long, env = "TOWPATH_PEER_KEY", value_name = "KEY", hide_env_values = true)]
    key: Option<String>,

    /// Authorities (PEM) that may vouch for the other Towpath, in place of the public ones
    #[arg(long, env = "TOWPATH_PEER_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// How often to ask when nothing is new, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    poll: u64,

    /// Stop when everything is applied that the other one has
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    serve: ServeFlags,
}

/// Follows until it is told to stop, or cannot go on.
pub(crate) async fn follow(flags: FollowFlags, applications: &Applications) -> Result<(), Failure> {
    let config = flags.serve.config(applications)?;
    start_log(&config.log);
    let name = flags.name.unwrap_or_else(|| name_of(&flags.url));
    let policy =
        FollowPolicy { poll: std::time::Duration::from_millis(flags.poll.max(1)), ..FollowPolicy::default() };
    let mut follower = Follower::of(&flags.url).with(policy);
    if let Some(key) = flags.key {
        follower = follower.key(key);
    }
    if let Some(file) = flags.ca {
        let pem = std::fs::read(&file).map_err(|error| {
            Failure::usage(format!("--ca: the file {} cannot be read: {error}", file.display()))
        })?;
        follower = follower.authorities(pem);
    }
    let mut builder =
        Towpath::builder().store(&config.store).broker(&config.broker).channels(config.channels);
    if let Some(size) = config.log_page_size {
        builder = builder.page_size(size);
    }
    // No application runs here, and channels may still be in their formats.
    builder = applications.iter().fold(builder, |builder, application| application.switched_off(builder));
    let app = builder.start().await.map_err(not_started)?;
    let following = match app.follow(follower.mirror(&name)).await {
        Ok(following) => following,
        Err(error) => {
            app.stop().await;
            return Err(failure(&error));
        }
    };
    output::note(&format!("follows {} as {name}, from position {}", flags.url, following.position()));
    let ended = tokio::select! {
        () = told_to_stop() => Ok(()),
        ended = following.ended() => ended,
        caught_up = following.caught_up(), if flags.once => caught_up.map(|_| ()),
    };
    following.stop().await;
    output::note(&format!("applied up to position {}", following.position()));
    app.stop().await;
    ended.map_err(|error: Arc<FollowError>| failure(&error))
}

fn failure(error: &FollowError) -> Failure {
    let message = told(error);
    match error {
        FollowError::BadUrl(_) | FollowError::InvalidName(_) => Failure::usage(message),
        FollowError::Store(_) => Failure::unreachable(message),
        error if error.class() == ErrorClass::Transient => Failure::unreachable(message),
        _ => Failure::no(message),
    }
}

/// The host and port of a URL, as far as a name can be long.
fn name_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default().chars().take(64).collect()
}
