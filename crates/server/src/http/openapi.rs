//! The OpenAPI document: made from the handlers, completed with what holds for all of them.

use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{ContentBuilder, Info, OpenApi, Ref, RefOr, Required, ResponseBuilder};
use utoipa::{PartialSchema as _, ToSchema as _};

use super::problem::{PROBLEM_JSON, ProblemBody};

/// What can happen to any request, whatever it asks for.
const ANYWHERE: [(&str, &str); 8] = [
    ("400", "The request cannot be read."),
    ("401", "Who asks is not known."),
    ("403", "Who asks may not do this."),
    ("413", "The request is too large."),
    (
        "429",
        "This caller asks more often than it may, or has as much under way; ask again after `Retry-After`.",
    ),
    ("500", "Something is wrong here that sending the request again does not cure."),
    (
        "503",
        "The store or the broker cannot be reached, or too much is asked at once; send it again after `Retry-After`.",
    ),
    ("504", "It took too long."),
];

/// What can happen to any change.
const CHANGING: [(&str, &str); 2] = [
    ("409", "The same Idempotency-Key is at work already, or belongs to another request."),
    ("415", "There is a body, and it is not said to be JSON."),
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
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        operations.into_iter().flatten().for_each(has_no_nul);
        for operation in [&mut item.get, &mut item.head].into_iter().flatten() {
            complete_operation(operation, &ANYWHERE);
        }
        let changes = [&mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in changes.into_iter().flatten() {
            complete_operation(operation, &ANYWHERE);
            complete_operation(operation, &CHANGING);
            takes_idempotency_key(operation);
            is_made_once(operation);
        }
    }
    document
}

fn complete_operation(operation: &mut Operation, answers: &[(&str, &str)]) {
    for (status, description) in answers {
        let said = || ResponseBuilder::new().description(*description).build().into();
        operation.responses.responses.entry((*status).to_owned()).or_insert_with(said);
    }
    errors_are_problems(operation);
}

/// Every change takes one, by the layer around all paths. A handler that says more about it is left alone.
fn takes_idempotency_key(operation: &mut Operation) {
    let parameters = operation.parameters.get_or_insert_default();
    let is_key =
        |parameter: &RefOr<Parameter>| matches!(parameter, RefOr::T(known) if known.name == IDEMPOTENCY_KEY);
    if !parameters.iter().any(is_key) {
        let text = ObjectBuilder::new().schema_type(Type::String);
        let key = ParameterBuilder::new()
            .name(IDEMPOTENCY_KEY)
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some("The same key again gives the same answer and no second effect."))
            .schema(Some(text));
        parameters.push(key.build().into());
    }
}

/// No text in a path or a query has a NUL: such a request is refused before anybody sees it.
fn has_no_nul(operation: &mut Operation) {
    let parameters = operation.parameters.iter_mut().flatten().filter_map(|parameter| match parameter {
        RefOr::T(parameter) => Some(parameter),
        RefOr::Ref(_) => None,
    });
    for parameter in parameters {
        let in_url = matches!(parameter.parameter_in, ParameterIn::Path | ParameterIn::Query);
        let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema else { continue };
        let is_text = match &schema.schema_type {
            SchemaType::Type(kind) => *kind == Type::String,
            SchemaType::Array(kinds) => kinds.contains(&Type::String),
            SchemaType::AnyValue => false,
        };
        if in_url && is_text && schema.pattern.is_none() && schema.enum_values.is_none() {
            schema.pattern = Some("^[^\\u0000]*$".to_owned());
        }
    }
}

/// What was made under a key before is there: the same body, and 200.
fn is_made_once(operation: &mut Operation) {
    let responses = &mut operation.responses.responses;
    if let (Some(RefOr::T(made)), false) = (responses.get("201"), responses.contains_key("200")) {
        let mut there = made.clone();
        there.description =
            "It was done before, under the same Idempotency-Key; this is the recorded answer.".to_owned();
        responses.insert("200".to_owned(), there.into());
    }
}

const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

/// Handlers only name the status of an error and when it comes.
fn errors_are_problems(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        let is_error = status.starts_with('4') || status.starts_with('5');
        if is_error && response.content.is_empty() {
            let schema = Ref::from_schema_name(ProblemBody::name());
            let problem = ContentBuilder::new().schema(Some(schema)).build();
            response.content.insert(PROBLEM_JSON.to_owned(), problem.into());
        }
    }
}
