//! RabbitMQ's management interface, as far as tests need it: a virtual host of a test's own, because the frozen names of
//! queues are the same in every test.

use base64::Engine as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A virtual host that is removed with the test.
pub struct VirtualHost {
    name: String,
    pub url: String,
}

impl VirtualHost {
    pub async fn make() -> Self {
        let name = format!("market-test-{}", uuid::Uuid::now_v7().simple());
        ask("PUT", &format!("/api/vhosts/{name}"), "{}").await;
        let rights = r#"{"configure":".*","write":".*","read":".*"}"#;
        ask("PUT", &format!("/api/permissions/{name}/{}", user()), rights).await;
        let url = super::variable("TOWPATH_TEST_AMQP_URL");
        let (server, _) = url.rsplit_once('/').expect("amqp://…/vhost");
        Self { url: format!("{server}/{name}"), name }
    }

    pub async fn remove(self) {
        ask("DELETE", &format!("/api/vhosts/{}", self.name), "").await;
    }

    pub async fn unbind(&self, exchange: &str, queue: &str, routing_key: &str) {
        let vhost = &self.name;
        ask("DELETE", &format!("/api/bindings/{vhost}/e/{exchange}/q/{queue}/{routing_key}"), "").await;
    }

    /// The queues as the broker knows them.
    pub async fn queues(&self) -> serde_json::Value {
        self.listed("queues").await
    }

    pub async fn exchanges(&self) -> serde_json::Value {
        self.listed("exchanges").await
    }

    pub async fn bindings(&self) -> serde_json::Value {
        self.listed("bindings").await
    }

    async fn listed(&self, what: &str) -> serde_json::Value {
        serde_json::from_str(&ask("GET", &format!("/api/{what}/{}", self.name), "").await).unwrap()
    }
}

fn user() -> String {
    let url = super::variable("TOWPATH_TEST_AMQP_MANAGEMENT_URL");
    let authority = url.trim_start_matches("http://").to_owned();
    authority.split([':', '@']).next().expect("a user").to_owned()
}

/// Asks and answers the body; anything but success is a panic.
async fn ask(method: &str, path: &str, body: &str) -> String {
    let url = super::variable("TOWPATH_TEST_AMQP_MANAGEMENT_URL");
    let (login, address) =
        url.trim_start_matches("http://").rsplit_once('@').expect("http://user:password@host");
    let address = address.trim_end_matches('/');
    let login = base64::engine::general_purpose::STANDARD.encode(login);
    let mut stream = TcpStream::connect(address).await.expect("the management interface");
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Basic {login}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).unwrap_or_default();
    assert!(status.starts_with('2'), "{method} {path}: {head}\n{body}");
    body.to_owned()
}
