//! The section `[genesis]` of the configuration.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath::retry::duration_text;
use towpath_genesis::author::{Author, EmbeddedAuthor};
use towpath_genesis::capability::CapabilityPolicy;
use towpath_genesis::openai::{OpenAi, OpenAiSettings};
use towpath_genesis::{Genesis, GenesisSettings};

use crate::Failure;

/// The longest `genesis.channel`: a channel's name has 64 characters, and one of genesis' ends with `.process`.
const LONGEST_CHANNEL: usize = 56;

/// How long somebody who waits for work is kept at most, where a request may take so long.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The `[genesis]` section of a file.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct GenesisSection {
    /// Whether it runs.
    enabled: bool,
    /// What its channels are called, and so its exchanges or topics.
    channel: String,
    /// How many of each capability are done at a time in this process.
    concurrency: u32,
    tasks: TasksSection,
    worker: WorkerSection,
    /// How long somebody who waits for work is kept at most.
    #[serde(skip)]
    wait_at_most: Duration,
}

/// How capabilities are done.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct TasksSection {
    /// How long one attempt may take.
    #[serde(with = "duration_text")]
    time_limit: Duration,
    /// The pauses before further attempts.
    retries: Vec<Pause>,
    /// How long a worker may be silent before another takes over.
    #[serde(with = "duration_text")]
    heartbeat: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
struct Pause(#[serde(with = "duration_text")] Duration);

/// Who writes.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct WorkerSection {
    /// `embedded`, `openai` or `none`; with a URL it is `openai`, if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    /// The endpoint, up to `/chat/completions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// A file with the key, and nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<PathBuf>,
    /// How long one answer may take.
    #[serde(with = "duration_text")]
    answer_within: Duration,
    /// For how long a "too many requests" is waited out.
    #[serde(with = "duration_text")]
    waits_at_most: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// Deterministic text, made in this process.
    Embedded,
    /// An endpoint that speaks the chat completions of OpenAI.
    #[serde(rename = "openai")]
    OpenAi,
    /// Nobody here: workers outside of the process answer over HTTP.
    None,
}

impl Default for GenesisSection {
    fn default() -> Self {
        let GenesisSettings { channel, concurrency, .. } = GenesisSettings::default();
        let (tasks, worker) = (TasksSection::default(), WorkerSection::default());
        Self { enabled: true, channel, concurrency, tasks, worker, wait_at_most: Duration::ZERO }
    }
}

impl Default for TasksSection {
    fn default() -> Self {
        let CapabilityPolicy { time_limit, retries, heartbeat } = CapabilityPolicy::default();
        Self { time_limit, retries: retries.into_iter().map(Pause).collect(), heartbeat }
    }
}

impl Default for WorkerSection {
    fn default() -> Self {
        Self {
            kind: None,
            url: None,
            model: None,
            key_file: None,
            answer_within: Duration::from_secs(100),
            waits_at_most: Duration::from_secs(20),
        }
    }
}

impl GenesisSection {
    /// For a server whose requests may take so long. What is found at the end of a wait still has to be read and sent.
    pub(super) fn checked(self, request_timeout: Duration) -> Result<Self, Failure> {
        let channel = &self.channel;
        let fits = |one: u8| one.is_ascii_alphanumeric() || b"._-".contains(&one);
        if !(1..=LONGEST_CHANNEL).contains(&channel.len()) || !channel.bytes().all(fits) {
            return Err(Failure::usage(format!(
                "genesis.channel is {channel:?}; write 1 to {LONGEST_CHANNEL} letters, digits, dots, _ and -"
            )));
        }
        if self.concurrency == 0 {
            return Err(Failure::usage("genesis.concurrency is 0; write 1 or more"));
        }
        if self.tasks.time_limit.is_zero() {
            return Err(Failure::usage("genesis.tasks.time-limit is 0; write how long an attempt may take"));
        }
        let wait_at_most = LONGEST_WAIT.min(request_timeout * 4 / 5);
        Ok(Self { wait_at_most, ..self })
    }

    /// Genesis, if it is to run.
    pub(super) fn open(self) -> Result<Option<Genesis>, Failure> {
        if !self.enabled {
            return Ok(None);
        }
        let TasksSection { time_limit, retries, heartbeat } = self.tasks;
        let retries = retries.into_iter().map(|Pause(pause)| pause).collect();
        let settings = GenesisSettings {
            channel: self.channel,
            concurrency: self.concurrency,
            wait_at_most: self.wait_at_most,
            capabilities: CapabilityPolicy { time_limit, retries, heartbeat },
            ..GenesisSettings::default()
        };
        Ok(Some(Genesis::new(settings, self.worker.author()?)))
    }
}

impl WorkerSection {
    fn author(self) -> Result<Option<Arc<dyn Author>>, Failure> {
        let kind = self.kind.unwrap_or(if self.url.is_some() { Kind::OpenAi } else { Kind::Embedded });
        match kind {
            Kind::None => Ok(None),
            Kind::Embedded => Ok(Some(Arc::new(EmbeddedAuthor))),
            Kind::OpenAi => {
                let missing = |key: &str| Failure::usage(format!("genesis.worker.{key} is missing"));
                let key = self.key_file.map(|file| {
                    std::fs::read_to_string(&file).map_err(|error| {
                        Failure::usage(format!("genesis.worker.key-file: {}: {error}", file.display()))
                    })
                });
                let author = OpenAi::new(OpenAiSettings {
                    url: self.url.ok_or_else(|| missing("url"))?,
                    model: self.model.ok_or_else(|| missing("model"))?,
                    key: key.transpose()?.map(|key| key.trim().to_owned()),
                    answer_within: self.answer_within,
                    waits_at_most: self.waits_at_most,
                });
                let author = author.map_err(|error| Failure::usage(format!("[genesis.worker]: {error}")))?;
                Ok(Some(Arc::new(author)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(text: &str) -> Result<Option<Genesis>, String> {
        let section: GenesisSection = toml::from_str(text).map_err(|error| error.to_string())?;
        let checked = section.checked(Duration::from_secs(30)).and_then(GenesisSection::open);
        checked.map_err(|failure| failure.message)
    }

    #[test]
    fn it_runs_unless_told_otherwise_and_what_is_wrong_is_named() {
        assert!(opened("").unwrap().is_some());
        assert!(opened("enabled = false").unwrap().is_none());
        let written = opened("channel = 'g'\n[tasks]\ntime-limit = '1s'\nretries = ['10ms', '2s']").unwrap();
        let policy = written.unwrap().settings().capabilities.clone();
        assert_eq!(policy.retries, [Duration::from_millis(10), Duration::from_secs(2)]);
        for (text, named) in [
            ("channel = 'a b'", "genesis.channel"),
            ("concurrency = 0", "genesis.concurrency"),
            ("[tasks]\ntime-limit = '0s'", "time-limit"),
            ("[tasks]\nretries = ['soon']", "soon"),
            ("[worker]\nkind = 'openai'", "genesis.worker.url"),
            ("[worker]\nurl = 'http://localhost'", "genesis.worker.model"),
            ("[worker]\nurl = 'nowhere'\nmodel = 'm'", "URL"),
            ("[worker]\nurl = 'http://localhost'\nmodel = 'm'\nkey-file = '/no/file'", "/no/file"),
            ("[worker]\nkind = 'nobody'", "nobody"),
        ] {
            let told = opened(text).err().unwrap_or_else(|| panic!("{text} is taken"));
            assert!(told.contains(named), "{text}: {told}");
        }
    }
}
