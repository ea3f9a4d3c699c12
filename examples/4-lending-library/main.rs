//! A lending library: books that may be lent, each for a time; readers in a table of the library's own; reminders, written by
//! a consumer. Run it as often at once as you like: a book is lent to one reader.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use towpath::Tx;
use towpath::ports::store::{Append, StoreError};
use towpath::prelude::*;
use towpath::tables::{Column, ColumnKind, Table, Value};

/// How many books a reader may have at a time.
const MOST_BOOKS: i64 = 2;

const READERS: Table = Table::new(
    "readers",
    &[Column::new("reader_id", ColumnKind::Name(64)), Column::new("books", ColumnKind::Long)],
    &["reader_id"],
    &[],
);

const REMINDERS: Table = Table::new(
    "reminders",
    &[Column::new("book_id", ColumnKind::Name(64)), Column::new("reminded_at", ColumnKind::Time)],
    &["book_id"],
    &[],
);

/// Who has it.
#[derive(Default, Serialize, Deserialize)]
struct Book(Option<String>);

#[derive(Serialize, Deserialize, Command)]
enum BookCommand {
    #[serde(rename = "book.add")]
    #[command(gives = BookEvent::ADDED)]
    Add,
    #[serde(rename = "book.mark-lost")]
    MarkLost,
}

#[derive(Serialize, Deserialize, Event)]
enum BookEvent {
    #[serde(rename = "book.added")]
    Added,
    #[serde(rename = "book.lent")]
    Lent { to: String },
    #[serde(rename = "book.overdue")]
    Overdue,
    #[serde(rename = "book.returned")]
    Returned,
    #[serde(rename = "book.lost")]
    Lost,
}

impl Aggregate for Book {
    const KIND: &'static str = "book";
    type Command = BookCommand;
    type Event = BookEvent;
    type Refusal = Refused;

    fn decide(&self, command: BookCommand, context: &Context) -> Result<Vec<BookEvent>, Refused> {
        match command {
            BookCommand::Add if context.version > 0 => Ok(vec![]),
            BookCommand::Add => Ok(vec![BookEvent::Added]),
            BookCommand::MarkLost => Ok(vec![BookEvent::Lost]),
        }
    }

    fn evolve(self, event: &BookEvent) -> Self {
        match event {
            BookEvent::Lent { to } => Book(Some(to.clone())),
            BookEvent::Overdue => self,
            BookEvent::Added | BookEvent::Returned | BookEvent::Lost => Book(None),
        }
    }

    fn machine() -> Option<Machine> {
        Some(
            Machine::named("book")
                .starts(BookEvent::ADDED, "on the shelf")
                .state("on the shelf")
                .waits("lent", Deadline::after(Duration::from_secs(1), BookEvent::OVERDUE), "its return")
                .state("overdue")
                .terminal("lost")
                .transition("on the shelf", BookEvent::LENT, "lent")
                .transition("lent", BookEvent::OVERDUE, "overdue")
                .transition("lent", BookEvent::RETURNED, "on the shelf")
                .transition("overdue", BookEvent::RETURNED, "on the shelf")
                .transition("overdue", BookEvent::LOST, "lost"),
        )
    }
}

/// The reader's row and the book's fact commit together. The machine refuses a book that is not there.
async fn lend(app: &Towpath, book: &str, reader: &str) -> Result<bool, StoreError> {
    app.transact(async |mut tx| {
        let readers = &mut tx.own_tables();
        let row = readers.dialect().insert_unless_there("readers (reader_id, books) VALUES (?, 0)");
        readers.execute("reader.known", &row, vec![Value::from(reader)]).await?;
        let sql = "UPDATE readers SET books = books + 1 WHERE reader_id = ? AND books < ?";
        if readers.execute("reader.takes", sql, vec![reader.into(), MOST_BOOKS.into()]).await? == 0 {
            return Ok(false);
        }
        tx.append(Append::of::<Book>(book).events([BookEvent::Lent { to: reader.to_owned() }])).await?;
        Ok(true)
    })
    .await
}

async fn give_back(app: &Towpath, book: &str, reader: &str) -> Result<(), StoreError> {
    app.transact(async |mut tx| {
        tx.execute("UPDATE readers SET books = books - 1 WHERE reader_id = ?", &[reader]).await?;
        tx.append(Append::of::<Book>(book).events([BookEvent::Returned])).await.map(drop)
    })
    .await
}

/// Runs once for each book that is overdue, in whichever instance.
async fn remind(fact: Fact<BookEvent>, mut tx: Tx) -> Result<(), HandlerError> {
    let row = vec![Value::from(fact.aggregate_id().unwrap_or_default()), Value::from(tx.now())];
    Ok(tx.own_tables().put("reminder", &REMINDERS, vec![row]).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reader = std::env::args().nth(1).unwrap_or_else(|| "zoe".to_owned());
    let app = Towpath::from_env()
        .aggregate::<Book>()
        .tables(&[READERS, REMINDERS])
        .channel(Channel::named("books", ["book.*"]))
        .consumer(Consumer::of("books").only([BookEvent::OVERDUE]).events().each("remind", remind))
        .start()
        .await?;
    app.send::<Book>("moby-dick", BookCommand::Add).once("moby-dick arrives").await?;
    let taken = |error: StoreError| (error.code() == "illegal-transition").then_some(false).ok_or(error);
    let lent = lend(&app, "moby-dick", &reader).await.or_else(taken)?;
    println!("{}", if lent { "moby-dick is lent" } else { "not today" });
    while app.store().own_rows("reminders", "SELECT book_id FROM reminders", vec![]).await?.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("it was overdue");
    if lent {
        give_back(&app, "moby-dick", &reader).await?;
    }
    app.stop().await;
    Ok(())
}
