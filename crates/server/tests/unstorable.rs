//! Texts that PostgreSQL cannot keep: whoever sends one is told so, on every path.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod driver;

use std::sync::Arc;

use driver::{Server, towpath};
use towpath::Scratch;

#[test]
fn a_nul_is_a_mistake_of_who_sends_it_on_postgres() {
    let url = std::env::var("TOWPATH_TEST_POSTGRES_URL").expect("run `cargo xtask test`");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let scratch = runtime.block_on(Scratch::make(&url)).unwrap();
    let mut command = towpath();
    command.args(["--listen", "127.0.0.1:0", "--store", scratch.url()]);
    let server = Server::spawn(command, Arc::new(tempfile::tempdir().unwrap()), "");
    for path in [
        "/api/hive/services?after=%00",
        "/api/hive/services?status=a%00b",
        "/api/hive/services/%00",
        "/api/hive/services/a%00/revisions",
        "/api/aggregates/%00",
        "/api/aggregates/note/%00",
        "/api/commands/%00",
        "/api/commands?after=%00",
        "/api/flows/%00",
        "/api/trace?id=%00",
        "/api/outbox?channel=%00",
        "/api/dead-letters?handler=%00",
        "/api/market/orders?status=%00",
        "/api/events/stream?type=%00",
    ] {
        let answer = server.get(path, &[]);
        assert_eq!((answer.status, answer.code().as_str()), (400, "malformed"), "{path}");
    }
    let nul = "\\u0000";
    for (path, body) in [
        ("/api/channels", format!(r#"{{"name":"a","events":["*"],"exchange":"e{nul}"}}"#)),
        ("/api/channels", format!(r#"{{"name":"a{nul}","events":["*"],"exchange":"e"}}"#)),
        ("/api/channels", format!(r#"{{"name":"b","events":["{nul}"],"exchange":"e"}}"#)),
        ("/api/dead-letters/discard", format!(r#"{{"handler":"{nul}","message":"{nul}","all":true}}"#)),
        ("/api/outbox/retry", format!(r#"{{"reason":"{nul}","all":true}}"#)),
        (
            "/api/hive/services",
            format!(r#"{{"name":"a","namespace":"b","image":"c","env":{{"D":"{nul}"}}}}"#),
        ),
        ("/api/hive/services", format!(r#"{{"name":"a{nul}","namespace":"b","image":"c"}}"#)),
        ("/api/market/products", format!(r#"{{"sellerId":1,"title":"{nul}","price":1.00}}"#)),
        ("/api/commands", format!(r#"{{"type":"a{nul}","aggregateId":"b","payload":null}}"#)),
        ("/api/commands", format!(r#"{{"type":"a","aggregateId":"b{nul}","payload":"{nul}"}}"#)),
    ] {
        let answer = server.ask("POST", path, &[], &body);
        assert!(answer.status < 500, "{path} {body}: {answer:?}");
    }
    drop(server);
    runtime.block_on(scratch.remove()).unwrap();
}
