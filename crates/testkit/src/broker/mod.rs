//! The meaning of the broker contract, as cases that every adapter runs.
//!
//! An adapter describes itself with a [`BrokerFixture`] and writes one line in a test file:
//!
//! ```ignore
//! towpath_testkit::broker_conformance!(RabbitFixture::fresh());
//! ```
//!
//! Each case then is a test of its own, named like the case, with names on the broker that nobody else uses. A case
//! that needs a promise the adapter does not make
//! ([`BrokerPromises`](towpath_core::ports::broker::BrokerPromises)), or a hook its fixture does not have, is named behind the
//! fixture (`left out: a_case, another`) and shown as ignored; where a promise only changes what is expected, the case asks
//! for one or the other.
//!
//! No case sleeps: they wait on conditions with a deadline. A bug that is fixed in one adapter becomes a case here.

pub mod acts;
pub mod dead_letters;
pub mod declaring;
pub mod faults;
mod own_kafka;
pub mod proxy;
pub mod publishing;
pub mod receiving;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use towpath_core::ports::broker::Broker;

pub use own_kafka::OwnKafka;
pub use proxy::{Seen, TcpProxy};

/// One broker, and names on it that belong to one case. Every case gets a fixture of its own; dropping it may remove
/// what was declared under its names.
#[async_trait]
pub trait BrokerFixture: Send + Sync {
    /// A new, independent handle. It may connect when it is first used.
    async fn connect(&self) -> Arc<dyn Broker>;

    /// A name for an exchange or a queue that was never used before and never will be again.
    fn fresh_name(&self, what: &str) -> String;

    /// How large a body may be that is called large, in bytes.
    fn large_body(&self) -> usize {
        1 << 20
    }

    /// Where the broker listens, such as `127.0.0.1:5672`; `None` when there is no connection to disturb.
    fn server(&self) -> Option<String> {
        None
    }

    /// A handle like any other that connects to this address instead; `None` where that cannot be.
    async fn connect_through(&self, _address: SocketAddr) -> Option<Arc<dyn Broker>> {
        None
    }

    /// Restarts the broker and answers when it is back; `None` when it may not be, because others use it.
    async fn restart(&self) -> Option<()> {
        None
    }

    /// Makes the broker take nothing, as when it is short of memory, or lets it again; `None` when it may not be.
    async fn raise_alarm(&self, _on: bool) -> Option<()> {
        None
    }
}

/// Runs one case with a deadline, so that one that hangs fails alone and does not hang them all.
pub async fn run_case(name: &str, case: impl Future<Output = ()>) {
    const DEADLINE: Duration = Duration::from_secs(300);
    if tokio::time::timeout(DEADLINE, case).await.is_err() {
        panic!("{name} did not end within {DEADLINE:?}");
    }
}

/// Expands to one test per case of the suite, named like the case. The expression makes a fresh [`BrokerFixture`]; it
/// is evaluated once per test, in an async function. The crate needs `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! broker_conformance {
    ($fixture:expr $(, left out: $($left_out:ident),+)? $(,)?) => {
        $crate::broker_conformance! {
            @cases ($) $fixture, [$($($left_out)+)?];
            declaring:
                declaring_again_changes_nothing,
                a_mismatch_names_the_argument,
                an_exchange_of_another_kind_is_a_mismatch,
                a_binding_without_its_ends_is_missing_them,
                each_kind_of_exchange_routes_its_way,
                arguments_of_every_type_are_declared,
                a_broker_that_answers_is_ready,
                a_queue_tells_what_it_holds;
            publishing:
                a_message_arrives_to_the_letter,
                the_order_of_batches_is_kept,
                a_thousand_messages_are_confirmed,
                exactly_the_unroutable_message_is_told,
                many_unroutable_messages_are_told_exactly,
                one_id_to_two_places_has_two_outcomes,
                an_unknown_exchange_spoils_nothing_for_long,
                a_message_that_fits_nowhere_is_refused_alone,
                callers_at_once_get_their_own_outcomes,
                a_caller_that_gives_up_disturbs_nobody,
                no_patience_is_unknown_at_once,
                endless_patience_is_no_trouble;
            receiving:
                prefetch_is_respected,
                unsettled_messages_come_again,
                messages_fetched_ahead_come_again,
                a_requeued_message_comes_again,
                an_acknowledged_message_is_gone,
                settling_twice_does_nothing,
                several_receivers_share,
                two_handles_are_independent,
                a_missing_queue_is_told,
                closing_gives_back_what_is_unsettled,
                a_receiver_that_stops_waiting_loses_nothing;
            dead_letters:
                a_rejected_message_goes_to_the_dead_letters,
                a_rejected_message_without_dead_letters_is_gone,
                a_delay_queue_routes_on_after_its_time;
            faults:
                a_cut_before_the_confirms_is_unknown,
                a_held_confirm_is_unknown_when_the_patience_is_over,
                a_silent_server_is_unknown_when_the_patience_is_over,
                a_server_that_is_not_there_is_unavailable,
                a_receiver_is_told_of_a_cut,
                what_is_confirmed_survives_a_restart,
                a_broker_that_takes_nothing_is_waited_for;
        }
    };
    (@cases ($dollar:tt) $fixture:expr, [$($left_out:ident)*]; $($module:ident: $($case:ident),+;)+) => {
        // A name among those left out that is no case would be an arm that nothing uses.
        #[deny(unused_macro_rules)]
        macro_rules! conformance_case {
            $(($dollar module:ident $left_out) => {
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[ignore = "needs what this adapter does not promise, or cannot be done to it"]
                async fn $left_out() {
                    let fixture = $fixture;
                    $crate::broker::$dollar module::$left_out(&fixture).await;
                }
            };)*
            ($dollar module:ident $dollar case:ident) => {
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $dollar case() {
                    let fixture = $fixture;
                    let case = $crate::broker::$dollar module::$dollar case(&fixture);
                    $crate::broker::run_case(stringify!($dollar case), case).await;
                }
            };
        }
        $($(conformance_case!($module $case);)+)+
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// A case that is written but not listed would never run, and nothing would say so.
    #[test]
    fn every_case_is_listed_in_the_macro() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/broker");
        let (_, list) = include_str!("mod.rs").split_once("[$($($left_out)+)?];\n").unwrap();
        let (list, _) = list.split_once('}').unwrap();
        let listed: BTreeSet<&str> =
            list.split([',', ';', '\n', ' ']).filter(|word| !word.is_empty()).collect();
        let mut written = BTreeSet::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let source = std::fs::read_to_string(&path).unwrap();
            let mut cases = 0;
            for line in source.lines().filter(|line| line.contains("(fixture: &impl BrokerFixture) {")) {
                if let Some((name, _)) =
                    line.strip_prefix("pub async fn ").and_then(|line| line.split_once('('))
                {
                    written.insert(name.to_owned());
                    cases += 1;
                }
            }
            if cases > 0 {
                written.insert(format!("{}:", path.file_stem().unwrap().display()));
            }
        }
        assert_eq!(listed, written.iter().map(String::as_str).collect());
    }
}
