//! The crate `metrics`, or, without the feature of that name, nothing in its place.

use super::table::{Kind, Metric};

#[cfg(feature = "metrics")]
pub use ::metrics::{Counter, Gauge, Histogram};

#[cfg(not(feature = "metrics"))]
pub use nothing::{Counter, Gauge, Histogram};

impl Metric {
    /// A counter of this metric, registered with the recorder that is installed now. The labels are in the order in which
    /// the table names them.
    pub fn counter(&self, labels: &[&str]) -> Counter {
        debug_assert_eq!(self.kind, Kind::Counter, "{}", self.name);
        #[cfg(feature = "metrics")]
        return ::metrics::with_recorder(|recorder| recorder.register_counter(&self.key(labels), &METADATA));
        #[cfg(not(feature = "metrics"))]
        self.nothing(labels, Counter)
    }

    /// A gauge of this metric; see [`counter`](Self::counter).
    pub fn gauge(&self, labels: &[&str]) -> Gauge {
        debug_assert_eq!(self.kind, Kind::Gauge, "{}", self.name);
        #[cfg(feature = "metrics")]
        return ::metrics::with_recorder(|recorder| recorder.register_gauge(&self.key(labels), &METADATA));
        #[cfg(not(feature = "metrics"))]
        self.nothing(labels, Gauge)
    }

    /// A histogram of this metric; see [`counter`](Self::counter).
    pub fn histogram(&self, labels: &[&str]) -> Histogram {
        debug_assert!(matches!(self.kind, Kind::Histogram(_)), "{}", self.name);
        #[cfg(feature = "metrics")]
        return ::metrics::with_recorder(|recorder| {
            recorder.register_histogram(&self.key(labels), &METADATA)
        });
        #[cfg(not(feature = "metrics"))]
        self.nothing(labels, Histogram)
    }

    /// Tells the recorder what this metric means.
    pub fn describe(&self) {
        #[cfg(feature = "metrics")]
        ::metrics::with_recorder(|recorder| {
            let (name, help) = (::metrics::KeyName::from_const_str(self.name), self.help.into());
            match self.kind {
                Kind::Counter => recorder.describe_counter(name, None, help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
                Kind::Histogram(_) => recorder.describe_histogram(name, None, help),
            }
        });
    }

    #[cfg(feature = "metrics")]
    fn key(&self, values: &[&str]) -> ::metrics::Key {
        debug_assert_eq!(self.labels.len(), values.len(), "{}", self.name);
        let named = self.labels.iter().zip(values);
        let labels: Vec<_> =
            named.map(|(name, value)| ::metrics::Label::new(*name, (*value).to_owned())).collect();
        ::metrics::Key::from_parts(self.name, labels)
    }

    #[cfg(not(feature = "metrics"))]
    fn nothing<T>(&self, labels: &[&str], nothing: T) -> T {
        debug_assert_eq!(self.labels.len(), labels.len(), "{}", self.name);
        nothing
    }
}

#[cfg(feature = "metrics")]
const METADATA: ::metrics::Metadata<'static> =
    ::metrics::Metadata::new("towpath", ::metrics::Level::INFO, Some("towpath"));

/// What stands for the crate `metrics` where it is not built in: it is told everything and keeps nothing.
#[cfg(not(feature = "metrics"))]
mod nothing {
    /// A counter that counts nothing.
    #[derive(Debug, Clone, Copy)]
    pub struct Counter;

    /// A gauge that shows nothing.
    #[derive(Debug, Clone, Copy)]
    pub struct Gauge;

    /// A histogram that measures nothing.
    #[derive(Debug, Clone, Copy)]
    pub struct Histogram;

    impl Counter {
        /// Does nothing.
        pub fn increment(&self, _: u64) {}
    }

    impl Gauge {
        /// Does nothing.
        pub fn set(&self, _: f64) {}
    }

    impl Histogram {
        /// Does nothing.
        pub fn record(&self, _: f64) {}
    }
}
