//! Runs every example on every database, twice, and compares what it prints.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::process::Command;

use towpath::Scratch;

const FIRST_AGGREGATE: (&str, &str) =
    (env!("CARGO_BIN_EXE_first-aggregate"), include_str!("../1-first-aggregate/expected.txt"));

#[tokio::test]
async fn first_aggregate_on_sqlite() {
    let file = std::env::temp_dir().join("towpath.db");
    prints_the_same_twice(FIRST_AGGREGATE, &format!("sqlite://{}", file.display())).await;
}

#[tokio::test]
async fn first_aggregate_on_postgres() {
    prints_the_same_twice(FIRST_AGGREGATE, &server("TOWPATH_TEST_POSTGRES_URL")).await;
}

#[tokio::test]
async fn first_aggregate_on_mysql() {
    prints_the_same_twice(FIRST_AGGREGATE, &server("TOWPATH_TEST_MYSQL_URL")).await;
}

async fn prints_the_same_twice((program, expected): (&str, &str), server: &str) {
    let scratch = Scratch::make(server).await.unwrap();
    for _ in 0..2 {
        let output = Command::new(program).env("TOWPATH_STORE", scratch.url()).output().unwrap();
        let (printed, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{errors}");
        assert_eq!(printed, expected, "{errors}");
    }
    scratch.remove().await.unwrap();
}

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run `cargo xtask test`"))
}
