//! The stream over real sockets, with limits that a test can reach.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use towpath::{Aggregate, Command, Context, Event, Towpath};

use super::client::{Message, StreamClient};
use super::{Feed, FeedOptions};
use crate::http::access::{Access, Role};
use crate::http::limits::{LimitSettings, Limits};
use crate::http::memory::Memory;
use crate::http::{App, Patient, connections, router};

#[derive(Default, Serialize, Deserialize)]
struct Note;

#[derive(Serialize, Deserialize, Command)]
enum NoteCommand {
    #[serde(rename = "note.write")]
    Write { text: String },
    #[serde(rename = "note.tear")]
    Tear,
}

#[derive(Serialize, Deserialize, Event)]
enum NoteEvent {
    #[serde(rename = "note.written")]
    Written { text: String },
    #[serde(rename = "note.torn")]
    Torn,
}

impl Aggregate for Note {
    const KIND: &'static str = "note";
    type Command = NoteCommand;
    type Event = NoteEvent;
    type Refusal = Infallible;

    fn decide(&self, command: NoteCommand, _: &Context) -> Result<Vec<NoteEvent>, Infallible> {
        Ok(vec![match command {
            NoteCommand::Write { text } => NoteEvent::Written { text },
            NoteCommand::Tear => NoteEvent::Torn,
        }])
    }

    fn evolve(self, _: &NoteEvent) -> Self {
        self
    }
}

struct Stage {
    app: Towpath,
    feed: Feed,
    address: String,
    stop: tokio::sync::oneshot::Sender<()>,
    server: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Stage {
    async fn new(options: FeedOptions, patience: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("towpath.db").display());
        let builder = Towpath::builder().store(&url).aggregate::<Note>().scan(Duration::from_millis(20));
        let app = builder.start().await.unwrap();
        let feed = Feed::start(app.clone(), options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (served, ended) = (feed.clone(), feed.clone());
        let towpath = app.clone();
        let limits = LimitSettings {
            body_bytes: 1 << 20,
            header_bytes: 16 << 10,
            headers: 64,
            header_timeout: LONG,
            request_timeout: LONG,
            answer_timeout: LONG,
            connections: 1000,
            concurrent_requests: 1000,
            streams: 1000,
            memory_bytes: 1 << 30,
            caller_share: 100,
            requests_per_second: 0,
            burst: 0,
        };
        let server = tokio::spawn(async move {
            let (access, limited) = (Arc::new(Access::Local), Arc::new(Limits::new(limits.clone())));
            let router = router(
                App {
                    towpath,
                    memory: Default::default(),
                    readiness: Default::default(),
                    access,
                    limits: limited,
                    feed: served,
                    measurements: crate::http::metrics::Measurements::of_nothing(),
                },
                Vec::new(),
            );
            let told_to_stop = async move {
                let _ = stopped.await;
                ended.stop();
            };
            connections::serve(
                Patient { listener, patience, tls: None },
                router,
                &limits,
                LONG,
                told_to_stop,
            )
            .await;
        });
        Self { app, feed, address, stop, server, _folder: folder }
    }

    async fn write(&self, aggregate: &str, text: String) {
        self.app.send::<Note>(aggregate, NoteCommand::Write { text }).await.unwrap();
    }

    async fn reader(&self, query: &str, headers: &str) -> StreamClient {
        StreamClient::open(&self.address, &format!("/api/events/stream{query}"), headers).await.unwrap()
    }

    /// Waits until the feed has so many readers.
    async fn readers(&self, count: usize) {
        in_time("readers", async {
            while self.feed.readers() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        in_time("the end of the server", self.server).await.unwrap();
        self.app.stop().await;
    }
}

async fn in_time<T>(what: &str, doing: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(60), doing).await {
        Ok(done) => done,
        Err(_) => panic!("{what} did not come about in time"),
    }
}

async fn fact(reader: &mut StreamClient) -> Message {
    in_time("a fact", reader.next_fact()).await.unwrap().expect("the stream goes on")
}

fn quick() -> FeedOptions {
    FeedOptions { look: Duration::from_millis(20), ..FeedOptions::default() }
}

const LONG: Duration = Duration::from_secs(30);

/// Readers come while facts happen, from the first on, from the middle on, from now on; the feed keeps so few that most of
/// them pass from the store to the feed under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_reader_gets_every_fact_once_and_in_order_across_the_seam() {
    const FACTS: u64 = 600;
    let stage = Stage::new(FeedOptions { recent_facts: 64, ..quick() }, LONG).await;
    let mut readers = JoinSet::new();
    for number in 0..FACTS {
        stage.write(&format!("note-{}", number % 7), format!("{number}\n")).await;
        if number % 20 == 0 {
            let address = stage.address.clone();
            // Every third from now on: what it gets first says where that was.
            let after = (number % 3 != 0).then_some(number / 2);
            readers.spawn(async move {
                let query = after.map_or(String::new(), |after| format!("?after={after}"));
                let mut reader =
                    StreamClient::open(&address, &format!("/api/events/stream{query}"), "").await.unwrap();
                let greeting = in_time("the greeting", reader.next()).await.unwrap().unwrap();
                let mut last = greeting.id.unwrap();
                assert_eq!(after.unwrap_or(last), last);
                while last < FACTS {
                    let fact = fact(&mut reader).await;
                    // One that is told to come back does, as a browser would.
                    if fact.event.is_some() {
                        let again = format!("Last-Event-ID: {last}\r\n");
                        reader = StreamClient::open(&address, "/api/events/stream", &again).await.unwrap();
                        continue;
                    }
                    assert_eq!(fact.id, Some(last + 1), "nothing is missed and nothing comes twice");
                    let seen: serde_json::Value = serde_json::from_str(&fact.data).unwrap();
                    assert_eq!(seen["position"], last + 1);
                    assert_eq!(seen["payload"]["text"], format!("{last}\n"));
                    last += 1;
                }
            });
        }
    }
    let mut ended = 0;
    while let Some(reader) = in_time("the readers", readers.join_next()).await {
        reader.unwrap();
        ended += 1;
    }
    assert_eq!(ended, 30);
    stage.readers(0).await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_that_never_reads_harms_nobody_and_its_connection_is_ended() {
    let stage = Stage::new(quick(), Duration::from_millis(700)).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut never = socket.connect(stage.address.parse().unwrap()).await.unwrap();
    let asked = format!("GET /api/events/stream?after=0 HTTP/1.1\r\nHost: {}\r\n\r\n", stage.address);
    never.write_all(asked.as_bytes()).await.unwrap();
    let mut others = JoinSet::new();
    for _ in 0..20 {
        let mut reader = stage.reader("?after=0", "").await;
        others.spawn(async move {
            for position in 1..=50 {
                assert_eq!(fact(&mut reader).await.id, Some(position));
            }
            reader
        });
    }
    stage.readers(21).await;
    let large = "x".repeat(200_000);
    for number in 0..50 {
        stage.write(&format!("note-{number}"), large.clone()).await;
    }
    let others = others.join_all().await;
    // It is gone, with all it held, though it never said so.
    stage.readers(20).await;
    drop(others);
    stage.readers(0).await;
    stage.stop().await;
    drop(never);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_that_falls_behind_is_told_where_to_go_on_and_can() {
    let stage = Stage::new(FeedOptions { recent_facts: 4, ..quick() }, LONG).await;
    let mut slow = stage.reader("", "").await;
    stage.write("note", "first".to_owned()).await;
    assert_eq!(fact(&mut slow).await.id, Some(1));
    // More than the buffers of a connection hold.
    let large = "x".repeat(400_000);
    for number in 0..60 {
        stage.write(&format!("note-{number}"), large.clone()).await;
    }
    let mut last = 1;
    let dropped = loop {
        let next = fact(&mut slow).await;
        if next.event.is_some() {
            break next;
        }
        last += 1;
        assert_eq!(next.id, Some(last));
    };
    assert!(last < 61, "it was dropped");
    assert_eq!((dropped.event.as_deref(), dropped.id), (Some("dropped"), Some(last)));
    let why: serde_json::Value = serde_json::from_str(&dropped.data).unwrap();
    assert_eq!((&why["code"], &why["resumeAfter"]), (&"reader-too-slow".into(), &last.into()));
    assert_eq!(in_time("the end", slow.next()).await.unwrap(), None, "the connection is closed");
    let mut again = stage.reader("?after=0", &format!("Last-Event-ID: {last}\r\n")).await;
    for position in last + 1..=61 {
        assert_eq!(fact(&mut again).await.id, Some(position));
    }
    drop(again);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn filters_choose_by_type_and_aggregate_and_silence_still_tells_the_position() {
    let stage = Stage::new(FeedOptions { heartbeat: Duration::from_millis(200), ..quick() }, LONG).await;
    let mut torn = stage.reader("?after=0&type=note.t*&type=nothing", "").await;
    let mut of_b = stage.reader("?after=0&aggregate=note/b&aggregate=note/c", "").await;
    let mut both = stage.reader("?after=0&aggregate=note/b&type=*.torn", "").await;
    for aggregate in ["a", "b"] {
        stage.write(aggregate, "text".to_owned()).await;
        stage.app.send::<Note>(aggregate, NoteCommand::Tear).await.unwrap();
    }
    assert_eq!((fact(&mut torn).await.id, fact(&mut torn).await.id), (Some(2), Some(4)));
    assert_eq!((fact(&mut of_b).await.id, fact(&mut of_b).await.id), (Some(3), Some(4)));
    assert_eq!(fact(&mut both).await.id, Some(4));
    stage.write("a", "nobody wants it".to_owned()).await;
    for reader in [&mut torn, &mut of_b, &mut both] {
        let told = async {
            loop {
                let sign = reader.next().await.unwrap().unwrap();
                assert_eq!(sign.data, "", "a sign of life is no fact");
                if sign.id == Some(5) {
                    return;
                }
            }
        };
        in_time("the position", told).await;
    }
    drop((torn, of_b, both));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_cannot_be_asked_for_is_told_before_the_stream_begins() {
    let stage = Stage::new(FeedOptions { most_readers: 1, ..quick() }, LONG).await;
    for (query, headers, status, code) in [
        ("?after=1", "", 409, "position-ahead"),
        ("", "Last-Event-ID: 7\r\n", 409, "position-ahead"),
        ("?after=x", "", 400, "malformed"),
        ("?after=-1", "", 400, "malformed"),
        ("?after=99999999999999999999999", "", 400, "malformed"),
        ("", "Last-Event-ID: x\r\n", 400, "malformed"),
        ("?aggregate=note", "", 400, "malformed"),
        ("?sort=up", "", 400, "malformed"),
    ] {
        let refused = stage.reader(query, headers).await;
        assert!(refused.head.starts_with(&format!("HTTP/1.1 {status} ")), "{query}: {}", refused.head);
        let problem = refused.rest().await.unwrap();
        assert!(problem.contains(&format!(r#""code":"{code}""#)), "{query}: {problem}");
    }
    let first = stage.reader("", "Last-Event-ID: \r\n").await;
    assert!(first.head.contains("content-type: text/event-stream"), "{}", first.head);
    assert!(first.head.contains("cache-control: no-store"), "{}", first.head);
    stage.readers(1).await;
    let second = stage.reader("", "").await;
    assert!(
        second.head.starts_with("HTTP/1.1 503 ") && second.head.contains("retry-after"),
        "{}",
        second.head
    );
    drop(first);
    stage.readers(0).await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_end_with_the_server_and_the_feed_forgets_when_nobody_reads() {
    let stage = Stage::new(quick(), LONG).await;
    let mut reader = stage.reader("", "").await;
    stage.write("note", "one".to_owned()).await;
    assert_eq!(fact(&mut reader).await.id, Some(1));
    assert!(stage.feed.keeps_facts());
    drop(reader);
    stage.readers(0).await;
    in_time("forgetting", async {
        while stage.feed.keeps_facts() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    stage.write("note", "two".to_owned()).await;
    let mut reader = stage.reader("?after=1", "").await;
    assert_eq!(fact(&mut reader).await.id, Some(2), "what nobody read is in the store");
    let ending = tokio::spawn(async move { reader.next_fact().await });
    stage.stop().await;
    let ended = in_time("the end", ending).await.unwrap();
    assert!(matches!(ended, Ok(None)), "{ended:?}");
}

/// 500 readers while facts happen, and one among them that never reads: each of the others gets every fact once and in
/// order, and the one is gone at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn five_hundred_readers_get_every_fact_beside_one_that_never_reads() {
    const READERS: usize = 500;
    const FACTS: u64 = 120;
    let stage = Stage::new(quick(), Duration::from_secs(2)).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut never = socket.connect(stage.address.parse().unwrap()).await.unwrap();
    let asked = format!("GET /api/events/stream?after=0 HTTP/1.1\r\nHost: {}\r\n\r\n", stage.address);
    never.write_all(asked.as_bytes()).await.unwrap();
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let mut reader = stage.reader("?after=0", "").await;
        readers.spawn(async move {
            for position in 1..=FACTS {
                let fact = fact(&mut reader).await;
                assert_eq!((fact.id, fact.event), (Some(position), None), "{}", fact.data);
            }
            reader
        });
    }
    stage.readers(READERS + 1).await;
    // Enough to fill the buffers of the one, and little enough for the others.
    let text = "x".repeat(60_000);
    for number in 0..FACTS {
        stage.write(&format!("note-{}", number % 10), text.clone()).await;
    }
    let readers = readers.join_all().await;
    assert_eq!(readers.len(), READERS);
    // Its connection is ended: the place is free for somebody who reads.
    stage.readers(READERS).await;
    drop(readers);
    stage.readers(0).await;
    stage.stop().await;
    drop(never);
}

/// An answer by its head and its body.
async fn get(stage: &Stage, path: &str, headers: &str) -> (String, String) {
    let answer = StreamClient::open(&stage.address, path, headers).await.unwrap();
    (answer.head.clone(), in_time("an answer", answer.rest()).await.unwrap())
}

/// A log of facts with these sizes, all of which have their positions.
async fn log_of(sizes: impl IntoIterator<Item = usize>) -> Stage {
    let stage = Stage::new(quick(), LONG).await;
    let mut head = 0;
    for size in sizes {
        stage.write("note", "x".repeat(size)).await;
        head += 1;
    }
    in_time("positions", async {
        while stage.feed.log_head().await.unwrap() < head {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    stage
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_waits_for_room_of_its_own_keeps_nobody_from_old_facts() {
    let stage = log_of([100_000]).await;
    let memory = Memory::sized(1 << 20, 50);
    let (ann, bob) = (memory.of_caller("ann"), memory.of_caller("bob"));
    let all_of_hers = ann.room(1 << 20).await.ok().unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..10 {
        let (feed, ann) = (stage.feed.clone(), ann.clone());
        waiting.spawn(async move { feed.older(&ann, Role::Viewer, 0, 16, 1 << 20).await.unwrap().len() });
    }
    // They wait for at most ten seconds, with none of the few turns.
    for _ in 0..20 {
        let read = stage.feed.older(&bob, Role::Viewer, 0, 16, 1 << 20);
        let read = tokio::time::timeout(Duration::from_secs(5), read).await.expect("a turn");
        assert_eq!(read.unwrap().len(), 1);
    }
    drop(all_of_hers);
    while let Some(read) = in_time("those that waited", waiting.join_next()).await {
        assert_eq!(read.unwrap(), 1);
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn old_facts_that_are_small_take_room_together() {
    let stage = log_of([4096; 40]).await;
    let memory = Memory::sized(1 << 20, 100);
    let facts = stage.feed.older(&memory, Role::Viewer, 0, 40, 1 << 20).await.unwrap();
    let (all, most) = ((3 << 20) / 4, 600 << 10);
    assert_eq!(facts.len(), 40);
    assert!(memory.room_now(all).is_err() && memory.room_now(most).is_err(), "they are counted");
    drop(facts);
    assert!(memory.room_now(all).is_ok());
    stage.stop().await;
}

/// Nearly as large as a payload may be.
const NEARLY_4_MIB: usize = 4 * 1024 * 1024 - 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pages_of_large_facts_are_cut_by_their_bytes_and_nothing_is_missing() {
    let stage =
        log_of([NEARLY_4_MIB, NEARLY_4_MIB, NEARLY_4_MIB, 1_500_000, 1_500_000, 1_500_000, 10, 10]).await;
    let read_all = async |path: &str| {
        let (mut after, mut pages) = (0, Vec::new());
        loop {
            let (head, body) = get(&stage, &format!("{path}?after={after}&limit=1000"), "").await;
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            assert!(body.len() < 5 << 20, "{} bytes", body.len());
            let page: serde_json::Value = serde_json::from_str(&body).unwrap();
            let versions: Vec<u64> = page["events"]
                .as_array()
                .unwrap()
                .iter()
                .map(|event| event["aggregateVersion"].as_u64().unwrap())
                .collect();
            let Some(last) = versions.last() else { return pages };
            after = page["next"].as_u64().unwrap_or(*last);
            pages.push(versions);
        }
    };
    let expected = vec![vec![1], vec![2], vec![3], vec![4, 5], vec![6, 7, 8]];
    assert_eq!(read_all("/api/events").await, expected);
    assert_eq!(read_all("/api/aggregates/note/note/events").await, expected);
    // The same facts on the stream, from the store, and each is whole.
    let mut reader = stage.reader("?after=0", "").await;
    for (position, size) in (1..=8).zip([NEARLY_4_MIB, NEARLY_4_MIB, NEARLY_4_MIB, 1_500_000]) {
        let fact = fact(&mut reader).await;
        assert_eq!(fact.id, Some(position));
        assert!(fact.data.len() > size, "{}", fact.data.len());
    }
    drop(reader);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_page_that_is_sent_in_pieces_has_the_same_bytes_as_one_that_is_not() {
    use sha2::{Digest as _, Sha256};
    let stage = Stage::new(quick(), LONG).await;
    // One page of 20, and one more that makes it archived: some facts are larger than a piece, some share one.
    for number in 0..21_usize {
        let size = [700_000, 10, NEARLY_4_MIB, 300_000][number % 4];
        stage.write(&format!("note-{number}"), "é\n".repeat(size / 4)).await;
    }
    in_time("positions", async {
        while stage.feed.log_head().await.unwrap() < 21 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let (head, body) = get(&stage, "/notifications/1,20", "").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head} {}", body.len());
    let digest: String = Sha256::digest(&body).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    assert!(head.contains(&format!("etag: \"{digest}\"")), "the tag is that of the bytes: {head}");
    // Written anew as a whole, it is the same to the letter.
    let page: serde_json::Value = serde_json::from_str(&body).unwrap();
    let positions: Vec<u64> = page["notifications"]
        .as_array()
        .unwrap()
        .iter()
        .map(|notification| notification["notificationId"].as_u64().unwrap())
        .collect();
    assert_eq!(positions, (1..=20).rev().collect::<Vec<_>>());
    assert_eq!((page["id"].as_str(), page["archived"].as_bool()), (Some("1,20"), Some(true)));
    assert_eq!(get(&stage, "/notifications/1,20", "").await.1, body, "twice the same");
    let (known, nothing) =
        get(&stage, "/notifications/1,20", &format!("If-None-Match: \"{digest}\"\r\n")).await;
    assert!(known.starts_with("HTTP/1.1 304") && nothing.is_empty(), "{known}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flow_that_would_be_too_large_leaves_its_largest_payloads_out_and_says_so() {
    let stage = Stage::new(quick(), LONG).await;
    for (number, size) in [100, NEARLY_4_MIB, NEARLY_4_MIB, NEARLY_4_MIB, 200].into_iter().enumerate() {
        let write = NoteCommand::Write { text: "x".repeat(size) };
        stage.app.send::<Note>(format!("note-{number}"), write).in_flow("large").await.unwrap();
    }
    let (head, body) = get(&stage, "/api/flows/large", "").await;
    assert!(head.starts_with("HTTP/1.1 200") && body.len() < 100_000, "{head} {}", body.len());
    let flow: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(flow["whole"], true);
    assert!(flow["payloadsUpTo"].as_u64().unwrap() < NEARLY_4_MIB as u64 + 100);
    for list in ["commands", "events"] {
        let there: Vec<bool> =
            flow[list].as_array().unwrap().iter().map(|one| !one["payload"].is_null()).collect();
        assert_eq!(there, [true, false, false, false, true], "{list}");
    }
    let write = NoteCommand::Write { text: "small".to_owned() };
    stage.app.send::<Note>("note", write).in_flow("small").await.unwrap();
    let (_, body) = get(&stage, "/api/flows/small", "").await;
    let flow: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert!(flow["payloadsUpTo"].is_null() && flow["events"][0]["payload"]["text"] == "small", "{body}");
    stage.stop().await;
}
