//! The notification log from the outside: what caches and followers rely on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(clippy::print_stdout, reason = "how much was shown is worth a line")]

mod logs;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Stdio};
use std::time::Duration;

use logs::{Answer, Fresh, Server, Writers, ask, eventually, log_of, towpath};
use towpath::{SqlStore, Towpath};

/// Writes until the log has so many facts with a position.
async fn fill(store: &str, facts: u64) {
    let writers = Writers::on(store).await;
    let before = writers.store.head().await.unwrap();
    let app = Towpath::builder().store(store).scan(Duration::from_millis(10)).start().await.unwrap();
    eventually("facts", async || {
        if writers.store.head().await.unwrap() < facts {
            writers.write_for(1, Duration::from_millis(20)).await;
            return None;
        }
        Some(())
    })
    .await;
    eventually("positions", async || {
        let committed = writers.committed.lock().unwrap().len() as u64;
        (writers.store.head().await.unwrap() == before + committed).then_some(())
    })
    .await;
    app.stop().await;
    writers.store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_have_the_size_that_the_log_was_opened_with_and_no_other() {
    let fresh = Fresh::on("sqlite").await;
    let server = Server::start(fresh.url(), &["--log-page-size", "7"]);
    assert!(server.get("/notifications").body.contains(r#""id":"1,7""#));
    assert!(server.stop());
    fill(fresh.url(), 20).await;
    // Without a size, or with the same one, the log keeps its own.
    for arguments in [&[][..], &["--log-page-size", "7"]] {
        let server = Server::start(fresh.url(), arguments);
        assert!(server.get("/notifications/8,14").body.contains(r#""id":"8,14""#));
        assert_eq!(server.get("/notifications/1,20").status, 404);
        assert!(server.stop());
    }
    let output = towpath()
        .args(["serve", "--listen", "127.0.0.1:0", "--log-page-size", "20", "--store", fresh.url()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("log-page-size") && said.contains("pages of 7") && said.contains("leave it out"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_says_all_that_caches_need() {
    let fresh = Fresh::on("sqlite").await;
    fill(fresh.url(), 45).await;
    let server = Server::start(fresh.url(), &[]);
    let current = server.get("/notifications");
    let id = current.body.split('"').nth(3).unwrap().to_owned();
    let by_id = server.get(&format!("/notifications/{id}"));
    assert_eq!((&by_id.body, by_id.header("etag")), (&current.body, current.header("etag")));
    let archived = server.get("/notifications/21,40");
    assert_eq!(archived.header("cache-control"), Some("public, max-age=31536000, immutable, no-transform"));
    assert_eq!(current.header("cache-control"), Some("no-cache, no-transform"));
    assert_eq!(
        archived.header("link"),
        Some(
            r#"</notifications/21,40>; rel="self", </notifications/41,60>; rel="next", </notifications/1,20>; rel="previous""#
        )
    );
    for (path, page) in [("/notifications", &current), ("/notifications/21,40", &archived)] {
        let tag = page.header("etag").unwrap();
        assert!(tag.starts_with('"') && tag.ends_with('"'), "{tag} is a strong tag");
        let head = server.ask("HEAD", path, &[]);
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        for name in ["etag", "cache-control", "link", "content-type"] {
            assert_eq!(head.header(name), page.header(name), "{path} {name}");
        }
        assert_eq!(head.header("content-length"), Some(page.body.len().to_string().as_str()));
        for known in
            [tag.to_owned(), format!("W/{tag}"), format!("\"other\", W/\"1,20\" , {tag}"), "*".to_owned()]
        {
            for method in ["GET", "HEAD"] {
                let again = server.ask(method, path, &[("If-None-Match", &known)]);
                assert_eq!((again.status, again.body.as_str()), (304, ""), "{method} {path} {known}");
                for name in ["etag", "cache-control", "link"] {
                    assert_eq!(again.header(name), page.header(name), "{path} {name}");
                }
                assert_eq!(again.header("content-type"), None);
            }
        }
        for other in ["\"other\"", "W/\"other\"", "other", &tag[..tag.len() - 1]] {
            assert_eq!(server.ask("GET", path, &[("If-None-Match", other)]).status, 200, "{other}");
        }
    }
    assert_eq!(server.ask("HEAD", "/notifications/101,120", &[]).status, 404);
    assert_eq!(server.ask("POST", "/notifications", &[("Content-Length", "0")]).status, 405);

    // A database that was changed behind the server's back, as a restored one is, never has the old tag.
    let store = SqlStore::connect(fresh.url()).await.unwrap();
    let sql = "UPDATE domain_events SET payload = '{\"n\":77}' \
        WHERE event_id = (SELECT event_id FROM event_positions WHERE position = 25)";
    towpath::sqlx::query(sql).execute(store.sqlite_pool().unwrap()).await.unwrap();
    let tag = archived.header("etag").unwrap();
    let changed = server.ask("GET", "/notifications/21,40", &[("If-None-Match", tag)]);
    assert_eq!(changed.status, 200);
    assert_ne!(changed.header("etag"), Some(tag));
    // And one that lost facts does not show a page without them.
    let sql = "DELETE FROM event_positions WHERE position = 25";
    towpath::sqlx::query(sql).execute(store.sqlite_pool().unwrap()).await.unwrap();
    let broken = server.get("/notifications/21,40");
    assert_eq!((broken.status, broken.header("cache-control")), (500, Some("private, no-store")));
    store.close().await;
    assert!(server.stop());
}

/// A `towpath follow` that is killed when it is dropped.
struct Mirror(Child);

impl Mirror {
    fn start(peer: &str, store: &str, more: &[&str]) -> Self {
        let child = towpath()
            .args(["follow", peer, "--name", "mirror", "--poll", "30", "--store", store])
            .args(more)
            .env("TOWPATH_LOG", "warn")
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_fire_on_postgres() {
    under_fire("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_fire_on_mysql() {
    under_fire("mysql").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_fire_on_sqlite() {
    under_fire("sqlite").await;
}

/// Eight writers roll back and commit late; a follower follows over HTTP and is killed again and again; a client fetches
/// every archived page as soon as there is one. At the end the follower has exactly the committed facts, in the order of
/// the log, and every page is what it was.
async fn under_fire(database: &str) {
    let (theirs, ours) = (Fresh::on(database).await, Fresh::on(database).await);
    let writers = Writers::on(theirs.url()).await;
    let sequencing =
        Towpath::builder().store(theirs.url()).scan(Duration::from_millis(10)).start().await.unwrap();
    let server = Server::start(theirs.url(), &[]);
    let (done, is_done) = tokio::sync::watch::channel(false);

    let address = server.address.clone();
    let mut stop = is_done.clone();
    let fetching = tokio::task::spawn_blocking(move || {
        let mut pages: BTreeMap<String, Answer> = BTreeMap::new();
        let mut low = 1;
        loop {
            let over = *stop.borrow_and_update();
            let path = format!("/notifications/{low},{}", low + 19);
            let page = ask(&address, "GET", &path, &[]);
            if page.status == 200 && page.body.contains(r#""archived":true"#) {
                pages.insert(path, page);
                low += 20;
            } else if over {
                return pages;
            } else {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });

    let (peer, mirror) = (server.url(), ours.url().to_owned());
    let mirrored = SqlStore::connect(ours.url()).await.unwrap();
    let looked_at = mirrored.clone();
    let mut stop = is_done.clone();
    let killing = tokio::spawn(async move {
        let mut kills = 0_u64;
        loop {
            let following = Mirror::start(&peer, &mirror, &[]);
            // The first one lives until it has applied something, however slow the machine is.
            while kills == 0 && looked_at.head().await.unwrap_or_default() == 0 {
                let look = Duration::from_millis(20);
                if tokio::time::timeout(look, stop.wait_for(|done| *done)).await.is_ok() {
                    break;
                }
            }
            // Long enough to start, and then at any point. A killed one leaves its lease behind for a while, so how far
            // it gets between the kills is chance; `towpath::follow` kills it before each of its statements.
            let lives = Duration::from_millis(300 + (kills * 137) % 600);
            let over = tokio::time::timeout(lives, stop.wait_for(|done| *done)).await.is_ok();
            following.kill();
            kills += 1;
            if over {
                return kills;
            }
        }
    });

    // They write on until the follower has followed beside them for a while.
    let mut beside_the_writers = 0;
    for round in 0..10 {
        let before = beside_the_writers;
        writers.write_for(8, Duration::from_secs(3)).await;
        beside_the_writers = mirrored.head().await.unwrap_or_default();
        if round > 0 && before > 0 {
            break;
        }
    }
    assert!(beside_the_writers > 0, "the follower has applied nothing while the writers wrote");
    let committed: BTreeSet<_> = writers.committed.lock().unwrap().clone();
    assert!(committed.len() > 200, "only {} facts were written", committed.len());
    eventually("positions", async || {
        (writers.store.head().await.unwrap() as usize >= committed.len()).then_some(())
    })
    .await;
    done.send(true).unwrap();
    let kills = killing.await.unwrap();
    assert!(kills >= 5, "it was killed {kills} times");
    let pages = fetching.await.unwrap();

    let log = log_of(&writers.store).await;
    let positioned: BTreeSet<_> = log.iter().map(|event| event.envelope.event_id).collect();
    assert_eq!(positioned.len(), log.len());
    assert!(positioned == committed, "exactly the committed facts have positions");

    // The rest of the way without being killed.
    let following = Mirror::start(&server.url(), ours.url(), &[]);
    eventually("the mirror", async || {
        (mirrored.head().await.unwrap_or_default() as usize >= log.len()).then_some(())
    })
    .await;
    following.kill();
    let theirs_in_order: Vec<_> = log.into_iter().map(|event| event.envelope).collect();
    let ours_in_order: Vec<_> = log_of(&mirrored).await.into_iter().map(|event| event.envelope).collect();
    assert!(ours_in_order == theirs_in_order, "the mirror has the same facts in the same order");

    assert!(pages.len() >= theirs_in_order.len() / 20 - 1, "{} pages were fetched meanwhile", pages.len());
    for (path, first) in &pages {
        let second = server.get(path);
        assert_eq!(second.body, first.body, "{path} is what it was, byte for byte");
        assert_eq!(second.header("etag"), first.header("etag"));
    }
    println!(
        "{database}: {} facts, {beside_the_writers} of them mirrored beside the writers, {} pages, {kills} kills",
        theirs_in_order.len(),
        pages.len()
    );
    mirrored.close().await;
    sequencing.stop().await;
    writers.store.close().await;
    assert!(server.stop());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn following_ends_with_a_clear_word() {
    let (theirs, ours) = (Fresh::on("sqlite").await, Fresh::on("sqlite").await);
    fill(theirs.url(), 30).await;
    let server = Server::start(theirs.url(), &[]);
    let follow = |peer: &str| {
        let output = towpath()
            .args(["follow", peer, "--name", "mirror", "--once", "--store", ours.url()])
            .env("TOWPATH_LOG", "error")
            .output()
            .unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = follow(&server.url());
    assert_eq!(code, 0, "{said}");
    let head = SqlStore::connect(theirs.url()).await.unwrap().head().await.unwrap();
    assert!(said.contains(&format!("applied up to position {head}")), "{said}");
    assert_eq!(follow("http://me:s3cret@127.0.0.1:1").0, 2);
    assert!(!follow("http://me:s3cret@127.0.0.1:1").1.contains("s3cret"));
    // Another log under the same name.
    let other = Fresh::on("sqlite").await;
    fill(other.url(), 60).await;
    let another = Server::start(other.url(), &[]);
    let (code, said) = follow(&another.url());
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("[log-rewritten]") && said.contains("restored backup"), "{said}");
    // What is no Towpath's log.
    let (code, said) = follow(&format!("{}/api", server.url()));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("[log-unreadable]"), "{said}");
}

/// A caching proxy of the test's own, as people put them before servers.
struct Nginx {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Nginx {
    /// `None` where it is not installed.
    async fn before(server: &Server) -> Option<Self> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let mut places = std::env::split_paths(&folders).chain(["/usr/sbin".into()]);
        let program =
            places.find_map(|folder| Some(folder.join("nginx")).filter(|program| program.is_file()))?;
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let config = format!(
            "daemon off; error_log stderr; pid {at}/pid; worker_processes 1;\n\
             events {{}}\n\
             http {{\n\
             access_log off; gzip on; gzip_types *; gzip_min_length 1;\n\
             client_body_temp_path {at}/1; proxy_temp_path {at}/2; fastcgi_temp_path {at}/3;\n\
             uwsgi_temp_path {at}/4; scgi_temp_path {at}/5;\n\
             proxy_cache_path {at}/cache keys_zone=pages:1m;\n\
             server {{ listen 127.0.0.1:{port}; location / {{\n\
             proxy_pass http://{}; proxy_http_version 1.1; proxy_cache pages; proxy_cache_revalidate on;\n\
             add_header X-Cache $upstream_cache_status always; }} }} }}\n",
            server.address
        );
        let path = folder.path().join("nginx.conf");
        std::fs::write(&path, format!("user root;\n{config}")).unwrap();
        let child = std::process::Command::new(program)
            .args(["-p", &at.to_string(), "-c"])
            .arg(&path)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let address = format!("127.0.0.1:{port}");
        eventually("the proxy", async || std::net::TcpStream::connect(&address).ok()).await;
        Some(Self { child, address, _folder: folder })
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> (Answer, String) {
        let answer = ask(&self.address, "GET", path, headers);
        let cache = answer.header("x-cache").unwrap_or_default().to_owned();
        (answer, cache)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_cache_keeps_archived_pages_and_asks_for_the_current_one() {
    let fresh = Fresh::on("sqlite").await;
    fill(fresh.url(), 45).await;
    let server = Server::start(fresh.url(), &[]);
    let proxy = Nginx::before(&server).await.expect("nginx is not installed: run `cargo xtask test`");
    let (first, cache) = proxy.get("/notifications/21,40", &[]);
    assert_eq!((first.status, cache.as_str()), (200, "MISS"), "{}", first.head);
    let (second, cache) = proxy.get("/notifications/21,40", &[]);
    assert_eq!((cache.as_str(), &second.body), ("HIT", &first.body));
    let direct = server.get("/notifications/21,40");
    assert_eq!((&second.body, second.header("etag")), (&direct.body, direct.header("etag")));
    let tag = direct.header("etag").unwrap();
    let (known, _) = proxy.get("/notifications/21,40", &[("If-None-Match", tag)]);
    assert_eq!((known.status, known.body.as_str()), (304, ""));
    // If it compresses, it says so: the tag is then a weak one, which is still known here.
    let zipped = ask(&proxy.address, "HEAD", "/notifications/21,40", &[("Accept-Encoding", "gzip")]);
    match zipped.header("Content-Encoding") {
        None => assert_eq!(zipped.header("ETag"), Some(tag)),
        Some(_) => assert_eq!(zipped.header("ETag"), Some(format!("W/{tag}").as_str())),
    }

    let (current, _) = proxy.get("/notifications", &[]);
    let (again, cache) = proxy.get("/notifications", &[]);
    assert_ne!(cache, "HIT", "the current page is asked for each time");
    assert_eq!(again.body, current.body);
    // One more than there are: the first ones may be more than were asked for.
    let page: serde_json::Value = serde_json::from_str(&current.body).unwrap();
    let there = page["notifications"][0]["notificationId"].as_u64().unwrap();
    fill(fresh.url(), there + 1).await;
    let (newer, cache) = proxy.get("/notifications", &[]);
    assert_ne!(cache, "HIT");
    assert_ne!(newer.body, current.body, "what is new is seen at once");
    assert_eq!(newer.body, server.get("/notifications").body);
    // A follower comes through it, too.
    let ours = Fresh::on("sqlite").await;
    let output = towpath()
        .args(["follow", &format!("http://{}", proxy.address), "--once", "--store", ours.url()])
        .env("TOWPATH_LOG", "error")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    drop(proxy);
    assert!(server.stop());
}
