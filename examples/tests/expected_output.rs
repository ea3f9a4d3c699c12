//! Runs every example and compares what it prints.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::process::{Command, Stdio};

use towpath::{Scratch, SqlStore};

/// It checks itself and prints nothing.
const FIRST_PROGRAM: (&str, &str) = (env!("CARGO_BIN_EXE_first-program"), "");

const FIRST_AGGREGATE: (&str, &str) =
    (env!("CARGO_BIN_EXE_first-aggregate"), include_str!("../1-first-aggregate/expected.txt"));

const CONSUMER: (&str, &str) = (env!("CARGO_BIN_EXE_consumer"), include_str!("../2-consumer/expected.txt"));

const LENDING_LIBRARY: (&str, &str) =
    (env!("CARGO_BIN_EXE_lending-library"), include_str!("../4-lending-library/expected.txt"));

const PROCESS: (&str, &str) = (env!("CARGO_BIN_EXE_process"), include_str!("../6-process/expected.txt"));

const WORKER: (&str, &str) = (env!("CARGO_BIN_EXE_worker"), include_str!("../5-worker/expected.txt"));

#[test]
fn the_readme_begins_with_the_first_program() {
    let (readme, program) = (include_str!("../../README.md"), include_str!("../0-first-program/main.rs"));
    // It is compiled there and not run: it would leave its data beside the sources.
    let first = readme.split("```rust,no_run\n").nth(1).and_then(|block| block.split("```").next());
    assert_eq!(first, Some(program), "README.md and 0-first-program/main.rs are the same text");
    assert!(program.lines().count() <= 50, "the first program is short");
}

#[tokio::test]
async fn first_program_on_sqlite() {
    let file = std::env::temp_dir().join("towpath.db");
    prints_the_same_twice(FIRST_PROGRAM, &format!("sqlite://{}", file.display())).await;
}

#[tokio::test]
async fn first_program_on_postgres() {
    prints_the_same_twice(FIRST_PROGRAM, &server("TOWPATH_TEST_POSTGRES_URL")).await;
}

#[tokio::test]
async fn first_program_on_mysql() {
    prints_the_same_twice(FIRST_PROGRAM, &server("TOWPATH_TEST_MYSQL_URL")).await;
}

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

#[tokio::test]
async fn worker_on_sqlite() {
    let file = std::env::temp_dir().join("towpath.db");
    prints_the_same_twice(WORKER, &format!("sqlite://{}", file.display())).await;
}

#[tokio::test]
async fn worker_on_postgres() {
    prints_the_same_twice(WORKER, &server("TOWPATH_TEST_POSTGRES_URL")).await;
}

#[tokio::test]
async fn worker_on_mysql() {
    prints_the_same_twice(WORKER, &server("TOWPATH_TEST_MYSQL_URL")).await;
}

#[tokio::test]
async fn process_on_sqlite() {
    let file = std::env::temp_dir().join("towpath.db");
    prints_the_same_twice(PROCESS, &format!("sqlite://{}", file.display())).await;
}

#[tokio::test]
async fn process_on_postgres() {
    prints_the_same_twice(PROCESS, &server("TOWPATH_TEST_POSTGRES_URL")).await;
}

#[tokio::test]
async fn consumer_on_the_embedded_default() {
    let file = std::env::temp_dir().join("towpath.db");
    prints(CONSUMER, &format!("sqlite://{}", file.display()), "local:").await;
}

#[tokio::test]
async fn consumer_on_postgres_and_rabbitmq_by_two_urls() {
    prints(CONSUMER, &server("TOWPATH_TEST_POSTGRES_URL"), &server("TOWPATH_TEST_AMQP_URL")).await;
}

#[tokio::test]
async fn lending_library_on_the_embedded_default() {
    let file = std::env::temp_dir().join("towpath.db");
    prints(LENDING_LIBRARY, &format!("sqlite://{}", file.display()), "local:").await;
}

#[tokio::test]
async fn lending_library_twice_at_once_on_sqlite() {
    let file = std::env::temp_dir().join("towpath.db");
    lends_to_one_at_a_time(&format!("sqlite://{}", file.display()), "local:").await;
}

#[tokio::test]
async fn lending_library_twice_at_once_on_postgres_and_rabbitmq() {
    lends_to_one_at_a_time(&server("TOWPATH_TEST_POSTGRES_URL"), &server("TOWPATH_TEST_AMQP_URL")).await;
}

#[tokio::test]
async fn process_on_mysql() {
    prints_the_same_twice(PROCESS, &server("TOWPATH_TEST_MYSQL_URL")).await;
}

#[test]
fn the_worker_and_the_process_are_short() {
    for program in [include_str!("../5-worker/main.rs"), include_str!("../6-process/main.rs")] {
        assert!(program.lines().count() < 80);
    }
}

#[test]
fn the_lending_library_is_short() {
    assert!(include_str!("../4-lending-library/main.rs").lines().count() <= 150);
}

/// Two processes on one store. Whoever lends gives back, so in the end nobody has a book.
async fn lends_to_one_at_a_time(store: &str, broker: &str) {
    let scratch = Scratch::make(store).await.unwrap();
    let start = |reader: &str| {
        Command::new(LENDING_LIBRARY.0)
            .arg(reader)
            .env("TOWPATH_STORE", scratch.url())
            .env("TOWPATH_BROKER", broker)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let processes = ["ann", "bob"].map(start);
    let mut lent = 0;
    for process in processes {
        let output = process.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
        lent += printed.matches("moby-dick is lent").count();
        assert!(printed.ends_with("it was overdue\n"), "{printed}");
    }
    assert!(lent >= 1, "one of them has it");
    let store = SqlStore::connect(scratch.url()).await.unwrap();
    let keep = "SELECT reader_id FROM readers WHERE books <> 0";
    assert!(store.own_rows("test.readers", keep, vec![]).await.unwrap().is_empty());
    store.close().await;
    scratch.remove().await.unwrap();
}

async fn prints((program, expected): (&str, &str), store: &str, broker: &str) {
    let scratch = Scratch::make(store).await.unwrap();
    run(program, expected, scratch.url(), broker);
    scratch.remove().await.unwrap();
}

fn run(program: &str, expected: &str, store: &str, broker: &str) {
    let mut command = Command::new(program);
    let output = command.env("TOWPATH_STORE", store).env("TOWPATH_BROKER", broker).output().unwrap();
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert_eq!(printed, expected, "{errors}");
}

async fn prints_the_same_twice((program, expected): (&str, &str), server: &str) {
    let scratch = Scratch::make(server).await.unwrap();
    for _ in 0..2 {
        run(program, expected, scratch.url(), "local:");
    }
    scratch.remove().await.unwrap();
}

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run `cargo xtask test`"))
}
