//! A page per error code, from docs/errors.md: where the `type` of every problem leads.

use askama::Template;
use axum::Router;
use axum::response::Response;
use axum::routing::get;

use super::{html, markdown};
use crate::http::App;
use crate::http::extract::Path;
use crate::http::problem::Problem;

const ERRORS: &str = include_str!("../../../../../docs/errors.md");

/// The section about what is no code of ours.
const REFUSALS: &str = "Refusals and reasons";

pub(super) fn routes() -> Router<App> {
    Router::new().route("/docs/errors", get(all)).route("/docs/errors/{code}", get(one))
}

#[derive(Template)]
#[template(path = "errors.html")]
struct Page<'a> {
    title: &'a str,
    codes: Vec<&'a str>,
    text: String,
}

async fn all() -> Result<Response, Problem> {
    let mut text = markdown(&ERRORS.split("\n## ").next().unwrap_or_default().replace("# Errors", ""));
    for (code, section) in codes() {
        let meaning = section.split("\n- ").next().unwrap_or_default();
        let meaning = meaning.trim().trim_start_matches("- **Meaning:**");
        text.push_str(&format!(
            "<h3><a href=\"/docs/errors/{code}\"><code>{code}</code></a></h3>{}",
            markdown(meaning)
        ));
    }
    if let Some((_, refusals)) = sections().find(|(title, _)| *title == REFUSALS) {
        text.push_str(&format!("<h2 id=\"refusals-and-reasons\">{REFUSALS}</h2>{}", markdown(refusals)));
    }
    rendered("Errors", text)
}

async fn one(Path(code): Path<String>) -> Result<Response, Problem> {
    match codes().find(|(known, _)| *known == code) {
        Some((code, section)) => rendered(code, markdown(section)),
        // Applications have codes of their own, and their problems lead here, too.
        None => {
            let refusals = sections().find(|(title, _)| *title == REFUSALS).map_or("", |(_, text)| text);
            let text = format!(
                "<p>This code is none of Towpath's own: an application refuses with it.</p>{}",
                markdown(refusals)
            );
            rendered(&code, text)
        }
    }
}

fn rendered(title: &str, text: String) -> Result<Response, Problem> {
    let page = Page { title, codes: codes().map(|(code, _)| code).collect(), text };
    page.render().map(html).map_err(|error| Problem::internal(&error))
}

/// Each code with what there is to say about it.
fn codes() -> impl Iterator<Item = (&'static str, &'static str)> {
    sections().filter(|(title, _)| !title.contains(' '))
}

fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    ERRORS.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap_or((section, "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_is_a_page() {
        assert!(codes().count() > 40);
        for (code, section) in codes() {
            assert!(section.contains("**Next step:**"), "{code} does not say what to do");
        }
        assert!(sections().any(|(title, _)| title == REFUSALS));
    }
}
