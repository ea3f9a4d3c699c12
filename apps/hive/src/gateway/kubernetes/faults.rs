//! What went wrong with a request, and what that means to hive.

use std::time::Duration;

use kube::core::Status;
use kube::core::response::StatusDetails;

use super::calls::{GROUP, NAMESPACES, SERVICES, VERSION};
use crate::gateway::GatewayError;
use crate::spec::ResourceName;

/// The reason of a cause of a 409: a field belongs to another manager. (`metav1.CauseTypeFieldManagerConflict`)
const FIELD_MANAGER_CONFLICT: &str = "FieldManagerConflict";

/// The status code of a server that takes no more requests for a while.
const TOO_MANY_REQUESTS: u16 = 429;

/// For how long a server is left alone that does not say.
const USUAL_REST: Duration = Duration::from_secs(1);

/// The longest that a server is left alone, whatever it says.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// What went wrong with a request.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server has answered, with a status code that says no.
    Answered {
        /// The status code of the answer itself: a proxy in between may write any body.
        code: u16,
        /// What it says, if it speaks as Kubernetes does.
        status: Box<Status>,
    },
    /// There was no answer, or none that can be read.
    Silent {
        /// What was noticed.
        message: String,
    },
    /// There was no answer in time.
    TimedOut {
        /// How long was waited.
        after: Duration,
    },
    /// The server takes no more requests for a while.
    Busy {
        /// For how long.
        retry_after: Duration,
    },
    /// The request was never sent, because its address would lead elsewhere.
    NotSent {
        /// What is wrong with it.
        message: String,
    },
}

impl Fault {
    /// An answer that says no, perhaps with a `Retry-After`.
    pub(super) fn answered(code: u16, retry_after: Option<&str>, body: &[u8]) -> Self {
        let mut status: Status = serde_json::from_slice(body).unwrap_or_default();
        status.code = code;
        match code {
            TOO_MANY_REQUESTS => Self::Busy { retry_after: resting_time(retry_after, &status) },
            _ => Self::Answered { code, status: Box::new(status) },
        }
    }

    /// What the client noticed.
    pub(super) fn of_client(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Answered { code: status.code, status },
            // The output of the program that is asked for a token is in such an error.
            kube::Error::Auth(_) => {
                Self::Silent { message: "the credentials for the platform cannot be had".to_owned() }
            }
            other => Self::Silent { message: with_causes(&other) },
        }
    }

    /// Whether this very service is not there. A 404 can also be of the kind of resource, or of the namespace.
    pub(super) fn says_there_is_no_service(&self, resource: &ResourceName) -> bool {
        self.is_absence_of(GROUP, SERVICES, &resource.name)
    }

    /// Whether this very namespace is not there.
    pub(super) fn says_there_is_no_namespace(&self, namespace: &str) -> bool {
        self.is_absence_of("", NAMESPACES, namespace)
    }

    /// Whether the resource is another one by now, or was changed at the same moment. Of a resource that is gone, a uid is a
    /// conflict; of one that was made anew, the server takes it for an attempt to change the uid.
    pub(super) fn is_about_another_one(&self) -> bool {
        match self {
            Self::Answered { code: 409, .. } => self.other_managers().is_none(),
            Self::Answered { code: 422, .. } => {
                let details = self.details();
                details
                    .is_some_and(|details| details.causes.iter().any(|cause| cause.field == "metadata.uid"))
            }
            _ => false,
        }
    }

    /// Who else owns the fields that were to be changed; `None` if it is about something else. The names are for
    /// people: they stand in texts only.
    pub(super) fn other_managers(&self) -> Option<String> {
        let causes = match self {
            Self::Answered { code: 409, .. } => self.details().map_or(&[][..], |details| &details.causes),
            _ => &[],
        };
        let conflicts: Vec<_> =
            causes.iter().filter(|cause| cause.reason == FIELD_MANAGER_CONFLICT).collect();
        if conflicts.is_empty() {
            return None;
        }
        let mut names: Vec<&str> =
            conflicts.iter().filter_map(|cause| cause.message.split('"').nth(1)).collect();
        names.sort_unstable();
        names.dedup();
        Some(if names.is_empty() { "another field manager".to_owned() } else { names.join(" and ") })
    }

    /// What it means for a service.
    pub(super) fn about(self, resource: &ResourceName) -> GatewayError {
        let what = match self.details() {
            Some(details) if details.kind == NAMESPACES => format!("namespace {}", details.name),
            Some(details) if details.kind == SERVICES => resource.to_string(),
            _ => format!("{GROUP}/{VERSION} on the cluster (Knative Serving)"),
        };
        self.meaning(what)
    }

    /// What it means when a namespace was asked for.
    pub(super) fn about_namespaces(self) -> GatewayError {
        self.meaning("the API for namespaces".to_owned())
    }

    /// What it means when the server itself was asked for.
    pub(super) fn about_the_server(self) -> GatewayError {
        self.meaning(format!("{GROUP}/{VERSION} on the cluster (Knative Serving)"))
    }

    fn meaning(self, what: String) -> GatewayError {
        match self {
            Self::Answered { code: 404, .. } => GatewayError::NotFound { what },
            // Not about what was asked, but about who asks or when: expired credentials are renewed.
            Self::Answered { code: 401 | 408, status } => unavailable(&status),
            Self::Answered { code: TOO_MANY_REQUESTS, status } => {
                GatewayError::Busy { retry_after: resting_time(None, &status) }
            }
            Self::Busy { retry_after } => GatewayError::Busy { retry_after },
            Self::Answered { code: 400..=499, status } => {
                let reason = match status.reason.is_empty() {
                    true => format!("status {}", status.code),
                    false => status.reason,
                };
                GatewayError::Refused { reason, message: status.message }
            }
            Self::Answered { status, .. } => unavailable(&status),
            Self::Silent { message } => GatewayError::Unavailable { message },
            Self::TimedOut { after } => GatewayError::Timeout { after },
            Self::NotSent { message } => GatewayError::Refused { reason: "Invalid".to_owned(), message },
        }
    }

    fn is_absence_of(&self, group: &str, kind: &str, name: &str) -> bool {
        let is_it =
            |details: &StatusDetails| details.group == group && details.kind == kind && details.name == name;
        matches!(self, Self::Answered { code: 404, .. }) && self.details().is_some_and(is_it)
    }

    fn details(&self) -> Option<&StatusDetails> {
        match self {
            Self::Answered { status, .. } => status.details.as_ref(),
            _ => None,
        }
    }
}

/// For how long the server asks to be left alone: by the header, or by the body.
fn resting_time(header: Option<&str>, status: &Status) -> Duration {
    let of_body = || status.details.as_ref().map(|details| u64::from(details.retry_after_seconds));
    let seconds =
        header.and_then(|text| text.trim().parse().ok()).or_else(of_body).filter(|seconds| *seconds > 0);
    seconds.map_or(USUAL_REST, Duration::from_secs).min(LONGEST_REST)
}

fn unavailable(status: &Status) -> GatewayError {
    let message = match status.message.is_empty() {
        true => format!("status {}", status.code),
        false => format!("status {}: {}", status.code, status.message),
    };
    GatewayError::Unavailable { message }
}

/// An error with what led to it, each once: some repeat their cause in their own text.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}
