//! A server of your own: an application with a setting, paths and a command, beside ours.
//!
//! ```sh
//! cargo run --example guestbook                     # serves; GET /docs shows its paths among the others
//! cargo run --example guestbook -- guestbook sign Ann
//! ```

use std::convert::Infallible;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use towpath::{Aggregate, Application, Builder, Context, Towpath};
use towpath_server::axum::Json;
use towpath_server::axum::extract::State;
use towpath_server::axum::http::StatusCode;
use towpath_server::clap::{self, Subcommand};
use towpath_server::utoipa::{self, ToSchema};
use towpath_server::utoipa_axum::router::OpenApiRouter;
use towpath_server::utoipa_axum::routes;
use towpath_server::{
    Caller, Client, CommandLine, Connection, Failure, JsonBody, Plugin, Problem, Server, ServerContext, apps,
    output,
};

fn main() -> ExitCode {
    server().run()
}

/// Ours and this one.
pub(crate) fn server() -> Server {
    Server::new().with_all(apps::OURS).with::<Guestbook>()
}

/// How the guestbook works: the section `[guestbook]` of the configuration.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Guestbook {
    enabled: bool,
    longest_name: usize,
}

impl Default for Guestbook {
    fn default() -> Self {
        Self { enabled: true, longest_name: 40 }
    }
}

impl Application for Guestbook {
    const NAME: &'static str = "guestbook";

    fn install(&self, builder: Builder) -> Builder {
        builder.aggregate::<Book>()
    }
}

impl Plugin for Guestbook {
    type App = Self;
    type Settings = Self;
    type State = Desk;
    type Command = GuestbookCommand;

    const ABOUT: &'static str = "Who was here";

    async fn open(settings: Self, _: &ServerContext) -> Result<Option<Self>, Failure> {
        Ok(settings.enabled.then_some(settings))
    }

    fn state(app: &Self, towpath: &Towpath) -> Desk {
        Desk { settings: app.clone(), towpath: towpath.clone() }
    }

    fn routes() -> OpenApiRouter<Desk> {
        OpenApiRouter::new().routes(routes!(sign, list))
    }

    async fn run(command: GuestbookCommand, line: &CommandLine<'_, Self>) -> Result<(), Failure> {
        match command {
            GuestbookCommand::Sign { connection, name } => {
                let client = Client::new(&connection)?;
                let answer = client
                    .post(&["api", "guestbook", "guests"], &serde_json::json!({ "name": name }))
                    .await?;
                client.show(&answer, |signed| output::line(&format!("guest {}", signed["number"])));
            }
            GuestbookCommand::Rules { flags } => {
                let longest = line.configured(flags)?.settings.longest_name;
                output::line(&format!("a name has at most {longest} letters"));
            }
        }
        Ok(())
    }
}

/// What its handlers share.
#[derive(Clone)]
pub(crate) struct Desk {
    settings: Guestbook,
    towpath: Towpath,
}

/// What `towpath guestbook` can do.
#[derive(Subcommand)]
pub(crate) enum GuestbookCommand {
    /// Sign, on a running server
    Sign {
        #[command(flatten)]
        connection: Connection,
        name: String,
    },
    /// Print what a server with this configuration takes
    Rules {
        #[command(flatten)]
        flags: towpath_server::ServeFlags,
    },
}

/// A guest who signs.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Guest {
    name: String,
}

/// What became of it.
#[derive(Serialize, ToSchema)]
struct Signed {
    /// The how-manieth guest it is.
    number: u64,
    /// Who wrote it down.
    by: String,
}

/// Signs the guestbook
#[utoipa::path(post, path = "/api/guestbook/guests", tag = "guestbook", operation_id = "signGuestbook",
    request_body = Guest, responses(
        (status = 201, description = "It is signed.", body = Signed),
        (status = 422, description = "The name is too long."),
    ))]
async fn sign(
    State(desk): State<Desk>,
    caller: Caller,
    JsonBody(guest): JsonBody<Guest>,
) -> Result<(StatusCode, Json<Signed>), Problem> {
    if guest.name.chars().count() > desk.settings.longest_name {
        let title = format!("a name has at most {} letters", desk.settings.longest_name);
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        return Err(Problem::new(status, "name-too-long", title, "Leave out a middle name."));
    }
    let signed = desk.towpath.send::<Book>("main", BookCommand::Sign { name: guest.name }).await?;
    let signed = Signed { number: signed.aggregate_version, by: caller.name.to_string() };
    Ok((StatusCode::CREATED, Json(signed)))
}

/// Who was here.
#[derive(Serialize, ToSchema)]
struct Guests {
    guests: Vec<String>,
}

/// Lists the guests
#[utoipa::path(get, path = "/api/guestbook/guests", tag = "guestbook", operation_id = "listGuests",
    responses((status = 200, description = "The first one first.", body = Guests)))]
async fn list(State(desk): State<Desk>) -> Result<Json<Guests>, Problem> {
    let book = desk.towpath.load::<Book>("main").await?;
    Ok(Json(Guests { guests: book.map(|book| book.value.guests).unwrap_or_default() }))
}

#[derive(Default, Serialize, Deserialize)]
struct Book {
    guests: Vec<String>,
}

#[derive(Serialize, Deserialize, towpath::Command)]
enum BookCommand {
    #[serde(rename = "book.sign")]
    Sign { name: String },
}

#[derive(Serialize, Deserialize, towpath::Event)]
enum BookEvent {
    #[serde(rename = "book.signed")]
    Signed { name: String },
}

impl Aggregate for Book {
    const KIND: &'static str = "book";
    type Command = BookCommand;
    type Event = BookEvent;
    type Refusal = Infallible;

    fn decide(
        &self,
        BookCommand::Sign { name }: BookCommand,
        _: &Context,
    ) -> Result<Vec<BookEvent>, Infallible> {
        Ok(vec![BookEvent::Signed { name }])
    }

    fn evolve(mut self, BookEvent::Signed { name }: &BookEvent) -> Self {
        self.guests.push(name.clone());
        self
    }
}
