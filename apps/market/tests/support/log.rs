//! What is logged, for tests that look at it.

use std::io::Write;
use std::sync::{Arc, Mutex};

/// Everything that is logged in this process, as JSON lines.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The one log of this process: tests of one binary may share it, and look for their own event ids.
    pub fn of_this_process() -> Self {
        static LOG: std::sync::OnceLock<Log> = std::sync::OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            let writer = log.clone();
            tracing_subscriber::fmt()
                .json()
                .flatten_event(true)
                .with_env_filter("info,lapin=error,sqlx=error")
                .with_writer(move || writer.clone())
                .init();
            log
        })
        .clone()
    }

    /// The lines with a code (or none) about a message.
    pub fn lines(&self, code: Option<&str>, mentions: &str) -> Vec<serde_json::Value> {
        let bytes = self.0.lock().unwrap().clone();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(|line| line["code"].as_str() == code && line.to_string().contains(mentions))
            .collect()
    }
}
