//! The author behind HTTP, against a server that plays the endpoint: answers, refusals, time-outs, nonsense.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use towpath::HandlerError;
use towpath::retry::ErrorClass;
use towpath_genesis::author::Author as _;
use towpath_genesis::draft::{Brief, Draft, LONGEST_TEXT};
use towpath_genesis::openai::{OpenAi, OpenAiSettings};
use towpath_genesis::stage::Stage;

const KEY: &str = "sk-very-secret";

/// What the endpoint says, in order, and what it was asked.
#[derive(Clone, Default)]
struct Played {
    says: Arc<Mutex<VecDeque<Says>>>,
    asked: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
}

enum Says {
    This(u16, String),
    Busy(&'static str),
    Nothing,
}

async fn play(State(played): State<Played>, headers: HeaderMap, body: String) -> Response {
    played.asked.lock().unwrap().push((headers, serde_json::from_str(&body).unwrap()));
    let says = played.says.lock().unwrap().pop_front().expect("something to say");
    match says {
        Says::This(status, body) => (StatusCode::from_u16(status).unwrap(), body).into_response(),
        Says::Busy(after) => (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, after)]).into_response(),
        Says::Nothing => std::future::pending().await,
    }
}

impl Played {
    /// An author who waits for each answer as long as it takes on a slow machine.
    async fn author(&self) -> OpenAi {
        self.author_who(Duration::from_secs(20), Duration::from_millis(10)).await
    }

    async fn author_who(&self, answer_within: Duration, waits_at_most: Duration) -> OpenAi {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/", listener.local_addr().unwrap());
        let app = axum::Router::new().route("/v1/chat/completions", post(play)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        OpenAi::new(OpenAiSettings {
            url,
            model: "m-1".to_owned(),
            key: Some(KEY.to_owned()),
            answer_within,
            waits_at_most,
        })
        .unwrap()
    }

    async fn write(
        &self,
        author: &OpenAi,
        says: impl IntoIterator<Item = Says>,
    ) -> Result<Draft, HandlerError> {
        *self.says.lock().unwrap() = says.into_iter().collect();
        let written = author.write(&brief()).await;
        assert!(self.says.lock().unwrap().is_empty(), "all of it was heard");
        if let Err(error) = &written {
            assert!(!error.message().contains(KEY), "{}", error.message());
        }
        written
    }
}

fn brief() -> Brief {
    Brief {
        entity: Stage::Theme,
        ask: 1,
        initial_input: "a ferry that never lands".to_owned(),
        preferences: serde_json::Map::new(),
        confirmed: [(Stage::Concept, Draft { title: "The ferry".to_owned(), text: "…".to_owned() })].into(),
        network: Vec::new(),
        instructions: None,
    }
}

fn content(text: &str) -> Says {
    Says::This(
        200,
        json!({ "choices": [{ "message": { "role": "assistant", "content": text } }] }).to_string(),
    )
}

fn failed(written: Result<Draft, HandlerError>) -> (String, ErrorClass) {
    let error = written.expect_err("it fails");
    (error.code().to_owned(), error.class())
}

#[tokio::test]
async fn an_answer_is_a_title_and_a_text() {
    let played = Played::default();
    let author = played.author().await;
    let draft = played.write(&author, [content("# On mercy\n\nIt costs more.\n")]).await.ok().unwrap();
    assert_eq!(draft, Draft { title: "On mercy".to_owned(), text: "It costs more.".to_owned() });
    let draft = played.write(&author, [content("One line.")]).await.ok().unwrap();
    assert_eq!(draft, Draft { title: String::new(), text: "One line.".to_owned() });
    // A long one is cut, and no letter in the middle.
    let draft = played.write(&author, [content(&"ä".repeat(LONGEST_TEXT))]).await.ok().unwrap();
    assert_eq!(draft.text.len(), LONGEST_TEXT);
    let asked = played.asked.lock().unwrap();
    let (headers, body) = &asked[0];
    assert_eq!(headers[header::AUTHORIZATION], format!("Bearer {KEY}"));
    assert_eq!(body["model"], "m-1");
    let told: Value = serde_json::from_str(body["messages"][1]["content"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&told["entity"], &told["confirmed"]["concept"]["title"]),
        (&json!("theme"), &json!("The ferry"))
    );
}

#[tokio::test]
async fn too_many_requests_are_waited_out_where_that_is_short() {
    let played = Played::default();
    let author = played.author().await;
    let draft = played.write(&author, [Says::Busy("0"), content("A\nB")]).await.ok().unwrap();
    assert_eq!(draft.title, "A");
    let busy = ("genesis-model-busy".to_owned(), ErrorClass::Transient);
    assert_eq!(failed(played.write(&author, [Says::Busy("0"), Says::Busy("0")]).await), busy);
    // No longer than it may is waited; then it is asked once more.
    assert_eq!(failed(played.write(&author, [Says::Busy("3600"), Says::Busy("3600")]).await), busy);
    // A date is not waited for: the task's own policy is.
    for after in ["Wed, 21 Oct 2065 07:28:00 GMT", "-1"] {
        assert_eq!(failed(played.write(&author, [Says::Busy(after)]).await), busy, "{after}");
    }
}

#[tokio::test]
async fn what_goes_wrong_has_a_class() {
    let played = Played::default();
    let author = played.author().await;
    let said = |status, body: &str| [Says::This(status, body.to_owned())];
    let unavailable = ("genesis-model-unavailable".to_owned(), ErrorClass::Transient);
    let refused = ("genesis-model-refused".to_owned(), ErrorClass::Unrecoverable);
    let malformed = ("genesis-model-answer".to_owned(), ErrorClass::Transient);
    for (says, expected) in [
        (said(500, "oh"), &unavailable),
        (said(503, ""), &unavailable),
        (said(408, ""), &unavailable),
        (said(400, "no"), &refused),
        (said(401, KEY), &refused),
        (said(302, ""), &refused),
        (said(200, "no JSON"), &malformed),
        (said(200, "{}"), &malformed),
        (said(200, r#"{"choices":[]}"#), &malformed),
        (said(200, r#"{"choices":[{"message":{"content":null}}]}"#), &malformed),
        ([content(" \n ")], &malformed),
        ([content("a\u{0}b\nc")], &malformed),
        (said(200, &" ".repeat((1 << 20) + 1)), &malformed),
    ] {
        assert_eq!(&failed(played.write(&author, says).await), expected);
    }
    // It says nothing in time.
    let impatient = played.author_who(Duration::from_millis(500), Duration::ZERO).await;
    assert_eq!(failed(played.write(&impatient, [Says::Nothing]).await), unavailable);
}

#[tokio::test]
async fn nobody_there_is_another_attempt_and_a_url_that_is_none_is_told_at_once() {
    let settings = |url: &str, key: &str| OpenAiSettings {
        url: url.to_owned(),
        model: "m-1".to_owned(),
        key: Some(key.to_owned()),
        answer_within: Duration::from_secs(5),
        waits_at_most: Duration::ZERO,
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let author = OpenAi::new(settings(&url, KEY)).unwrap();
    let nobody = ("genesis-model-unavailable".to_owned(), ErrorClass::Transient);
    assert_eq!(failed(author.write(&brief()).await), nobody);
    let with_password = format!("http://user:{KEY}@host/v1");
    for (url, key) in [
        (with_password.as_str(), "k"),
        ("", KEY),
        ("ftp://host", KEY),
        ("mailto:a@b", KEY),
        ("https://host", "a\nb"),
        // The key would be seen on its way.
        ("http://host", KEY),
    ] {
        let told = OpenAi::new(settings(url, key)).err().expect(url).to_string();
        assert!(!told.contains(KEY) && !told.contains("a\nb"), "{told}");
    }
}
