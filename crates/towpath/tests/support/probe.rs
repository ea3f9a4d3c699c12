//! Probes for tests of the services: they act just before a statement of a given name.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use towpath::ports::probe::Probe;

/// What happens before a statement.
pub trait Action: Send + Sync + 'static {
    fn act(&self);
}

impl<F: Fn() + Send + Sync + 'static> Action for F {
    fn act(&self) {
        self();
    }
}

/// Acts before the next statements of one name, as often as it was armed for.
pub struct ProbeAt {
    name: &'static str,
    armed: AtomicU32,
    action: Box<dyn Action>,
}

impl ProbeAt {
    pub fn new(name: &'static str, action: impl Action) -> Self {
        Self { name, armed: AtomicU32::new(0), action: Box::new(action) }
    }

    pub fn arm(&self, times: u32) {
        self.armed.store(times, Ordering::SeqCst);
    }

    pub fn is_spent(&self) -> bool {
        self.armed.load(Ordering::SeqCst) == 0
    }
}

impl Probe for ProbeAt {
    fn before(&self, statement: &'static str) {
        let left = |armed: u32| armed.checked_sub(1);
        if statement == self.name && self.armed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok()
        {
            self.action.act();
        }
    }
}

/// Stands still until it is opened. It blocks a thread: the runtime needs several.
#[derive(Clone, Default)]
pub struct Gate(Arc<Inside>);

#[derive(Default)]
struct Inside {
    open: Mutex<bool>,
    opened: Condvar,
    reached: Notify,
}

impl Gate {
    pub async fn reached(&self) {
        self.0.reached.notified().await;
    }

    pub fn open(&self) {
        *self.0.open.lock().unwrap() = true;
        self.0.opened.notify_all();
    }
}

impl Action for Gate {
    fn act(&self) {
        self.0.reached.notify_one();
        let closed = self.0.open.lock().unwrap();
        // A test that fails meanwhile must not hang.
        let _ = self.0.opened.wait_timeout_while(closed, Duration::from_secs(20), |open| !*open).unwrap();
    }
}
