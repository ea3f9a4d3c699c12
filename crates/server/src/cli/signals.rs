//! Being told to stop: the first signal asks for it, the second one ends the process at once.

use super::output;

/// Waits for Ctrl-C or, on Unix, SIGTERM. From then on another one ends the process, whatever it is at. What comes after the
/// call is heard, also before somebody awaits it.
pub(super) fn told_to_stop() -> impl Future<Output = ()> {
    let mut signals = Signals::listen();
    async move {
        signals.next().await;
        tokio::spawn(async move {
            let code = signals.next().await;
            output::note("told to stop again: ends at once");
            std::process::exit(code);
        });
    }
}

/// Signals that tell to stop. They are listened for from the beginning: one that comes between two waits is not lost.
struct Signals {
    #[cfg(unix)]
    interrupt: Option<tokio::signal::unix::Signal>,
    #[cfg(unix)]
    terminate: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        Self {
            interrupt: signal(SignalKind::interrupt()).ok(),
            terminate: signal(SignalKind::terminate()).ok(),
        }
    }

    /// Waits for one; answers the exit code of who ends by it.
    async fn next(&mut self) -> i32 {
        async fn come(signal: &mut Option<tokio::signal::unix::Signal>) {
            match signal {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = come(&mut self.interrupt) => 130,
            () = come(&mut self.terminate) => 143,
        }
    }
}

#[cfg(not(unix))]
impl Signals {
    fn listen() -> Self {
        Self {}
    }

    async fn next(&mut self) -> i32 {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        130
    }
}
