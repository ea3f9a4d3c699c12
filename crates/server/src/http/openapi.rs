//! The OpenAPI document: made from the handlers, completed with what holds for all of them.

use utoipa::openapi::path::Operation;
use utoipa::openapi::{ContentBuilder, Info, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa::{PartialSchema as _, ToSchema as _};

use super::problem::{MEDIA_TYPE, ProblemBody};

/// What can happen to any request, whatever it asks for.
const ANYWHERE: [(&str, &str); 3] = [
    ("400", "The request cannot be read."),
    ("500", "Something is wrong here that sending the request again does not cure."),
    ("503", "The store or the broker cannot be reached; send it again after `Retry-After`."),
];

/// Completes the document that was collected from the handlers: who we are, and that every error is a problem.
pub(crate) fn complete(mut document: OpenApi) -> OpenApi {
    document.info = Info::builder()
        .title("Towpath")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "A backbone on which every state change becomes a fact, and every fact arrives. Errors are RFC 9457 \
             problems with a stable `code`; the problem's `type` leads to the page of that code.",
        ))
        .build();
    let components = document.components.get_or_insert_default();
    components.schemas.insert(ProblemBody::name().into_owned(), ProblemBody::schema());
    for item in document.paths.paths.values_mut() {
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.delete,
            &mut item.options,
            &mut item.head,
            &mut item.patch,
            &mut item.trace,
        ];
        for operation in operations.into_iter().flatten() {
            let asks_somebody = operation.operation_id.as_deref() != Some("healthz");
            if asks_somebody {
                for (status, description) in ANYWHERE {
                    let said = || ResponseBuilder::new().description(description).build().into();
                    operation.responses.responses.entry(status.to_owned()).or_insert_with(said);
                }
            }
            errors_are_problems(operation);
        }
    }
    document
}

/// Handlers only name the status of an error and when it comes.
fn errors_are_problems(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        let is_error = status.starts_with('4') || status.starts_with('5');
        if is_error && response.content.is_empty() {
            let schema = Ref::from_schema_name(ProblemBody::name());
            let problem = ContentBuilder::new().schema(Some(schema)).build();
            response.content.insert(MEDIA_TYPE.to_owned(), problem.into());
        }
    }
}
